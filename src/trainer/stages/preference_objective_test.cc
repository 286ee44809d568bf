#include "trainer/stages/preference_objective.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "trainer/stages/columns.h"

namespace tdock::trainer {
namespace {

// Two pairs of answers of two tokens; the second token of the last chosen answer does not count.
TokenBatch TwoPairs() {
  TokenBatch batch;
  batch.tokens = algo::MakeTokens(at::tensor({1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0}), std::vector<int64_t>(4, 2));
  batch.counts = algo::CountsOf(batch.tokens);
  batch.log_probs = at::tensor({-1.0, -2.0, -3.0, -0.5, -1.5, -9.0, -2.5, -0.25}).requires_grad_(true);
  batch.columns[kRefLogProb].values = at::tensor({-1.5, -2.5, -2.0, -1.0, -1.0, -3.0, -2.0, -0.5});
  return batch;
}

TEST(DpoObjective, AddsTheLikelihoodOfChosenAnswers) {
  const auto with = [](double nll_coef) {
    TokenBatch batch = TwoPairs();
    StepMetrics metrics;
    const at::Tensor loss = MakeDpoObjective({.loss = {}, .nll_coef = nll_coef})->Loss(batch, metrics);
    loss.backward();
    return std::pair(loss.item<double>(), batch.log_probs.grad());
  };
  const auto [without, without_gradient] = with(0);
  const auto [loss, gradient] = with(0.5);
  // The means of the chosen answers' tokens are 1.5 and 1.5.
  EXPECT_NEAR(loss - without, 0.5 * 1.5, 1e-12);
  const at::Tensor expected = at::tensor({-0.125, -0.125, 0.0, 0.0, -0.25, 0.0, 0.0, 0.0});
  EXPECT_LT((gradient - without_gradient - expected).abs().max().item<double>(), 1e-12);
}

}  // namespace
}  // namespace tdock::trainer
