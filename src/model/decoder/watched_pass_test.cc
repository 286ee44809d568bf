#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "model/decoder/decoder.h"
#include "model/files/testing/configs.h"

namespace tdock::model {
namespace {

using testing::ElementsAre;

// Notes what it is told.
struct Notes final : PassWatch {
  void BeforeUse(size_t layer) override { calls.push_back(absl::StrCat("use ", layer)); }
  void AfterUse(size_t layer) override { calls.push_back(absl::StrCat("used ", layer)); }
  void BeforeGradients(size_t layer) override { calls.push_back(absl::StrCat("gradients ", layer)); }
  void TakeGradients(size_t unit, std::vector<at::Tensor> gradients) override {
    calls.push_back(absl::StrCat("take ", unit));
    taken[unit] = std::move(gradients);
  }
  std::vector<std::string> calls;
  std::map<size_t, std::vector<at::Tensor>> taken;
};

at::Tensor Loss(const Decoder& decoder) {
  const at::Tensor tokens = at::arange(10).view({1, 10});
  return decoder.Logits(decoder.Hidden({.tokens = tokens, .positions = tokens})).square().mean();
}

class WatchedPassTest : public testing::TestWithParam<Recomputed> {};

TEST_P(WatchedPassTest, GivesTheGradientsOfAPassUnitByUnit) {
  for (const bool adapted : {false, true}) {
    Decoder decoder = Decoder::Random(TinyConfig(Architecture::kLlama, /*tied_head=*/true), 3, at::kCPU);
    if (adapted) {
      const LoraConfig lora{.rank = 2, .alpha = 4, .targets = {"q_proj", "down_proj"}};
      ASSERT_TRUE(decoder.AddAdapters(lora, 5).ok());
      for (const auto& [name, tensor] : decoder.NamedAdapters()) at::Tensor(tensor).fill_(0.1);
    }
    decoder.SetTrainable(true);
    decoder.SetRecomputed(GetParam());
    const std::vector<at::Tensor> trained = decoder.trainable();
    const std::vector<at::Tensor> expected = torch::autograd::grad({Loss(decoder)}, trained);

    Notes notes;
    {
      const Decoder pass = decoder.Watched(notes);
      torch::autograd::backward({Loss(pass)});
    }
    if (adapted) {
      EXPECT_THAT(notes.calls,
                  ElementsAre("use 0", "used 0", "use 1", "used 1", "gradients 1", "take 1", "gradients 0", "take 0"));
    } else {
      EXPECT_THAT(notes.calls, ElementsAre("use 0", "used 0", "use 1", "used 1", "gradients 1", "take 1", "gradients 0",
                                           "take 0", "take 2"));
    }
    size_t seen = 0;
    for (size_t unit = 0; unit < decoder.units(); ++unit) {
      const std::vector<at::Tensor> of_unit = decoder.TrainedOf(unit);
      ASSERT_EQ(notes.taken[unit].size(), of_unit.size());
      for (size_t i = 0; i < of_unit.size(); ++i, ++seen) {
        for (size_t j = 0; j < trained.size(); ++j) {
          if (trained[j].is_same(of_unit[i])) {
            EXPECT_TRUE(at::equal(notes.taken[unit][i], expected[j]));
          }
        }
        EXPECT_FALSE(of_unit[i].grad().defined());
      }
    }
    EXPECT_EQ(seen, trained.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Recomputed, WatchedPassTest,
                         testing::Values(Recomputed::kNothing, Recomputed::kAttentionCoreAndMlp, Recomputed::kLayers));

}  // namespace
}  // namespace tdock::model
