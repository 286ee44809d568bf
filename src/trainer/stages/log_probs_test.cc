#include "trainer/stages/log_probs.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "model/decoder/testing/devices.h"

namespace tdock::trainer {
namespace {

class LogProbsTest : public testing::TestWithParam<at::Device> {};
INSTANTIATE_TEST_SUITE_P(Devices, LogProbsTest, testing::ValuesIn(model::TestDevices()), model::DeviceName);

struct Plain {
  at::Tensor log_probs, entropy;
};

Plain LogProbsOf(const at::Tensor& logits, const at::Tensor& targets, double temperature) {
  const at::Tensor all = at::log_softmax(logits / temperature, -1);
  return {all.gather(1, targets.unsqueeze(1)).squeeze(1), -(all.exp() * all).sum(-1)};
}

TEST_P(LogProbsTest, AndEntropiesAndTheirGradientsAreThoseOfALogSoftmax) {
  // Wide enough for several blocks of rows, the last of which is smaller.
  const int64_t rows = 5, tokens = 100'003;
  const auto options = at::TensorOptions(GetParam());
  at::manual_seed(1);
  const at::Tensor targets = at::randint(tokens, {rows}, options.dtype(at::kLong));
  const at::Tensor weights = at::arange(1, rows + 1, options.dtype(at::kDouble)) - 3;  // one is 0
  for (const double temperature : {0.7, 1.0, 1.3}) {
    const at::Tensor logits = at::randn({rows, tokens}, options.dtype(at::kDouble)).mul_(3).requires_grad_();
    const Plain expected = LogProbsOf(logits, targets, temperature);
    for (const Entropy entropy : {Entropy::kWithoutGradients, Entropy::kWithGradients}) {
      const bool trained = entropy == Entropy::kWithGradients;
      const auto gradient = [&](const at::Tensor& log_probs, const at::Tensor& entropies, const at::Tensor& of) {
        const at::Tensor loss =
            (log_probs * weights).sum() + (trained ? (entropies * weights.flip(0)).sum() : at::zeros({}));
        return torch::autograd::grad({loss}, {of}, {}, /*retain_graph=*/true)[0];
      };
      const at::Tensor wanted = gradient(expected.log_probs, expected.entropy, logits);
      for (const auto& [dtype, near] : {std::pair(at::kDouble, 1e-12), {at::kFloat, 1e-5}}) {
        const at::Tensor given = logits.detach().to(dtype).requires_grad_();
        const ResponseFigures figures = ScoreTokens(given, targets, temperature, entropy);
        EXPECT_TRUE(at::allclose(figures.log_probs.to(at::kDouble), expected.log_probs, near, near)) << temperature;
        EXPECT_TRUE(at::allclose(figures.entropy.to(at::kDouble), expected.entropy, near, near)) << temperature;
        EXPECT_EQ(figures.entropy.requires_grad(), trained);
        const at::Tensor found = gradient(figures.log_probs, figures.entropy, given).to(at::kDouble);
        EXPECT_TRUE(at::allclose(found, wanted, near, near * 0.1)) << temperature;
      }
    }
  }
}

TEST_P(LogProbsTest, OfHalfPrecisionAreComputedInFloat32) {
  const auto options = at::TensorOptions(GetParam());
  at::manual_seed(2);
  const at::Tensor logits = at::randn({7, 50}, options).to(at::kBFloat16).requires_grad_();
  const at::Tensor targets = at::randint(50, {7}, options.dtype(at::kLong));
  const at::Tensor log_probs = ScoreTokens(logits, targets, 0.9).log_probs;
  const Plain expected = LogProbsOf(logits.to(at::kFloat), targets, 0.9);
  EXPECT_TRUE(at::allclose(log_probs, expected.log_probs, 1e-5, 1e-5));
  const at::Tensor gradient = torch::autograd::grad({log_probs.sum()}, {logits})[0];
  const at::Tensor wanted = torch::autograd::grad({expected.log_probs.sum()}, {logits})[0];
  EXPECT_EQ(gradient.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::allclose(gradient, wanted, 1e-2, 1e-4));
}

TEST(LogProbs, SayWhatDoesNotFit) {
  const at::Tensor logits = at::zeros({2, 3});
  EXPECT_THROW(ScoreTokens(logits, at::zeros({3}, at::kLong), 1.0), c10::Error);
  EXPECT_THROW(ScoreTokens(logits, at::zeros({2}, at::kLong), 0.0), c10::Error);
}

}  // namespace
}  // namespace tdock::trainer
