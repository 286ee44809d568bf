#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "model/decoder/decoder.h"
#include "model/decoder/dense_cache.h"
#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"

namespace tdock::model {
namespace {

class DropoutTest : public testing::TestWithParam<at::Device> {
 protected:
  static TokenBatch BatchOf(const ModelConfig& config, std::optional<uint64_t> seed) {
    TokenBatch batch{RandomTokens(2, 9, config.vocab_size, 3, GetParam()), PositionsFromZero(2, 9, GetParam())};
    batch.dropout_seed = seed;
    return batch;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, DropoutTest, testing::ValuesIn(TestDevices()), DeviceName);

TEST_P(DropoutTest, KeepsTheExpectationAndPassesGradientsWhereItKeeps) {
  const at::Tensor x = at::ones({200, 500}, at::TensorOptions(GetParam())).requires_grad_(true);
  const at::Tensor y = Drop(x, {.probability = 0.2, .seed = 7});
  EXPECT_NEAR((y == 0).to(at::kDouble).mean().item<double>(), 0.2, 0.01);
  EXPECT_TRUE(at::allclose(at::where(y == 0, at::full_like(y, 1.25), y), at::full_like(y, 1.25)));
  EXPECT_TRUE(at::equal(torch::autograd::grad({y.sum()}, {x})[0], y));
}

TEST_P(DropoutTest, FollowsFromTheSeedAlone) {
  const at::Tensor x = at::ones({64, 512}, at::TensorOptions(GetParam()));
  const at::Tensor y = Drop(x, {.probability = 0.5, .seed = 7});
  at::rand({10}, x.options());  // what others draw does not matter
  const int threads = at::get_num_threads();
  at::set_num_threads(threads == 1 ? 3 : 1);
  EXPECT_TRUE(at::equal(Drop(x, {.probability = 0.5, .seed = 7}), y));
  at::set_num_threads(threads);
  EXPECT_FALSE(at::equal(Drop(x, {.probability = 0.5, .seed = 8}), y));
}

TEST_P(DropoutTest, ChangesOnlyPassesThatHaveASeed) {
  for (const ModelConfig& config : TinyConfigs()) {
    Decoder decoder = TinyDecoder(config, 1, GetParam());
    const at::Tensor plain = decoder.Hidden(BatchOf(config, std::nullopt));
    EXPECT_FALSE(decoder.drops());
    EXPECT_TRUE(at::equal(decoder.Hidden(BatchOf(config, 5)), plain));
    decoder.SetDropout(0.3);
    EXPECT_TRUE(decoder.drops());
    EXPECT_TRUE(at::equal(decoder.Hidden(BatchOf(config, std::nullopt)), plain));
    const at::Tensor dropped = decoder.Hidden(BatchOf(config, 5));
    EXPECT_FALSE(at::allclose(dropped, plain));
    EXPECT_TRUE(at::equal(decoder.Hidden(BatchOf(config, 5)), dropped));
    EXPECT_FALSE(at::allclose(decoder.Hidden(BatchOf(config, 6)), dropped));
    EXPECT_TRUE(at::equal(decoder.Clone().Hidden(BatchOf(config, 5)), dropped));
  }
}

TEST_P(DropoutTest, OfAdaptersLeavesTheModelThatTheyAdapt) {
  const ModelConfig config = TinyConfig(Architecture::kLlama, /*tied_head=*/true);
  Decoder decoder = TinyDecoder(config, 1, GetParam());
  const at::Tensor plain = decoder.Hidden(BatchOf(config, std::nullopt));
  ASSERT_TRUE(decoder.AddAdapters({.rank = 3, .dropout = 0.3}, 1).ok());
  EXPECT_TRUE(decoder.drops());
  // Adapters without an effect, as they begin, have none with dropout either.
  EXPECT_TRUE(at::allclose(decoder.Hidden(BatchOf(config, 5)), plain));
  for (const auto& [name, factor] : decoder.NamedAdapters()) factor.fill_(0.1);
  const at::Tensor adapted = decoder.Hidden(BatchOf(config, std::nullopt));
  EXPECT_FALSE(at::allclose(decoder.Hidden(BatchOf(config, 5)), adapted));
}

TEST_P(DropoutTest, OfAPassWithACacheIsRefused) {
  const ModelConfig config = TinyConfig(Architecture::kLlama, /*tied_head=*/true);
  Decoder decoder = TinyDecoder(config, 1, GetParam());
  DenseCache cache(config, at::TensorOptions(GetParam()).dtype(at::kFloat));
  const int64_t sequence = cache.Add();
  ASSERT_TRUE(cache.Reserve(sequence, 18));
  EXPECT_THROW(decoder.Hidden(BatchOf(config, 5), cache.Begin({{sequence, 0, 18}}).get()), c10::Error);
}

}  // namespace
}  // namespace tdock::model
