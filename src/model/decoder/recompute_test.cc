#include "model/decoder/recompute.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"

namespace tdock::model {
namespace {

using RecomputeTest = testing::TestWithParam<at::Device>;
INSTANTIATE_TEST_SUITE_P(Devices, RecomputeTest, testing::ValuesIn(TestDevices()), DeviceName);

std::vector<at::Tensor> Gradients(const Decoder& decoder, const TokenBatch& batch) {
  return torch::autograd::grad({decoder.Logits(decoder.Hidden(batch)).square().sum()}, decoder.trainable());
}

TEST_P(RecomputeTest, GivesTheSameGradientsWhateverIsComputedAgain) {
  for (const ModelConfig& config : TinyConfigs()) {
    Decoder decoder = TinyDecoder(config, 1, GetParam());
    for (at::Tensor parameter : decoder.parameters()) parameter.set_data(parameter.to(at::kDouble));
    decoder.SetComputeType(at::kDouble);
    decoder.SetDropout(0.3);
    for (const bool adapters : {false, true}) {
      if (adapters) {
        ASSERT_TRUE(decoder.AddAdapters({.rank = 3, .dropout = 0.2}, 1).ok());
        for (const auto& [name, factor] : decoder.NamedAdapters()) factor.fill_(0.1);
      }
      decoder.SetTrainable(true);
      const at::Tensor tokens = RandomTokens(2, 9, config.vocab_size, 3, GetParam());
      TokenBatch batch{tokens, PositionsFromZero(2, 9, GetParam())};
      batch.dropout_seed = 5;
      decoder.SetRecomputed(Recomputed::kNothing);
      const std::vector<at::Tensor> expected = Gradients(decoder, batch);
      for (const Recomputed what :
           {Recomputed::kAttentionCore, Recomputed::kMlp, Recomputed::kAttentionCoreAndMlp, Recomputed::kLayers}) {
        decoder.SetRecomputed(what);
        const std::vector<at::Tensor> given = Gradients(decoder, batch);
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(at::allclose(given[i], expected[i], 1e-9, 1e-9))
              << Name(config.architecture) << ", kind " << static_cast<int>(what) << ", parameter " << i;
        }
      }
    }
  }
}

TEST_P(RecomputeTest, KeepsNothingOfWhatItRuns) {
  const auto options = at::TensorOptions(GetParam());
  const at::Tensor x = at::ones({3}, options).requires_grad_(true);
  const at::Tensor weight = at::full({3}, 2.0, options).requires_grad_(true);
  int runs = 0;
  at::Tensor inside;
  const auto square = [&](const at::Tensor& y) {
    ++runs;
    inside = y * weight;
    return inside * inside;
  };
  const at::Tensor output = Recompute(square, x, {weight});
  EXPECT_EQ(runs, 1);
  EXPECT_FALSE(inside.requires_grad());  // it is part of no graph that could keep it
  const auto gradients = torch::autograd::grad({output.sum()}, {x, weight});
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(at::equal(gradients[0], at::full({3}, 8.0, options)));
  EXPECT_TRUE(at::equal(gradients[1], at::full({3}, 4.0, options)));
}

TEST(Recompute, LeavesWhatIsFrozenWithoutGradients) {
  const at::Tensor x = at::ones({3});
  const at::Tensor frozen = at::full({3}, 2.0);
  const at::Tensor trained = at::full({3}, 3.0).requires_grad_(true);
  const auto product = [&](const at::Tensor& y) { return y * frozen * trained; };
  const at::Tensor output = Recompute(product, x, {frozen, trained});
  EXPECT_TRUE(at::equal(torch::autograd::grad({output.sum()}, {trained})[0], at::full({3}, 2.0)));
  EXPECT_FALSE(Recompute(product, x, {frozen}).requires_grad());
}

TEST(Recompute, OfACallThatFailsFails) {
  const at::Tensor x = at::ones({3}).requires_grad_(true);
  EXPECT_THROW(Recompute([](const at::Tensor& y) { return y + at::ones({2}); }, x, {}), c10::Error);
}

}  // namespace
}  // namespace tdock::model
