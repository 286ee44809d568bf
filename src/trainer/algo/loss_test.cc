#include "trainer/algo/loss.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "trainer/algo/kl.h"
#include "trainer/algo/testing/gradient_check.h"

namespace tdock::algo {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

at::Tensor Numbers(const std::vector<double>& values) { return at::tensor(values, at::kDouble); }

// The loss without a KL.
at::Tensor PolicyPart(const at::Tensor& log_probs, const at::Tensor& old_log_probs, const at::Tensor& advantages,
                      const at::Tensor& mask) {
  return ComputeActorLoss(log_probs, old_log_probs, old_log_probs, advantages, mask, mask.sum().item<double>(), {})
      .loss;
}

// DeepSpeed-Chat's end-to-end cases: an answer of five tokens, of which the mask keeps some.
TEST(PpoClipLoss, GivesThePublishedActorLosses) {
  const at::Tensor old_log_probs = Numbers({-1, -2, -0.5, -1.5, -0.3});
  const at::Tensor new_log_probs = Numbers({-0.7, -2.5, -0.4, -1.5, -0.3});
  const at::Tensor first_mask = Numbers({1, 1, 1, 0, 0});
  const at::Tensor first_advantages = Numbers({4.170937, 4.30625, 4.375, 4.5, 0});
  EXPECT_NEAR(PolicyPart(new_log_probs, old_log_probs, first_advantages, first_mask).item<double>(), -4.150707, 1e-6);

  const at::Tensor second_advantages = Numbers({-1.087772, -1.229234, -1.451825, -1.6335, -1.93});
  EXPECT_NEAR(PolicyPart(new_log_probs, old_log_probs, second_advantages, at::ones({5}, at::kDouble)).item<double>(),
              1.523948, 1e-6);

  EXPECT_NEAR(PolicyPart(old_log_probs, old_log_probs, first_advantages, first_mask).item<double>(), -4.284063, 1e-6);
}

TEST(PpoClipLoss, ClipsOnlyWhereTheRatioHasMovedTheWayTheAdvantagePushes) {
  // Ratios: inside, above and below the range 0.9 … 1.3, for both signs of the advantage.
  const at::Tensor ratio = Numbers({1.1, 1.5, 0.5, 1.1, 1.5, 0.5});
  const at::Tensor advantages = Numbers({2, 2, 2, -2, -2, -2});
  const at::Tensor log_probs = ratio.log().set_requires_grad(true);
  const PolicyLoss loss = PpoClipLoss(log_probs, at::zeros({6}, at::kDouble), advantages, 0.1, 0.3);

  const double expected[] = {-2.2, -2.6, -1.0, 2.2, 3.0, 1.8};
  const bool clipped[] = {false, true, false, false, false, true};
  const at::Tensor gradient = torch::autograd::grad({loss.per_token.sum()}, {log_probs})[0];
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(loss.per_token[i].item<double>(), expected[i], 1e-12) << i;
    EXPECT_NEAR(loss.ratio[i].item<double>(), ratio[i].item<double>(), 1e-12) << i;
    EXPECT_EQ(loss.clipped[i].item<bool>(), clipped[i]) << i;
    if (clipped[i]) {
      EXPECT_EQ(gradient[i].item<double>(), 0.0) << i;
    } else {
      EXPECT_NEAR(gradient[i].item<double>(), -advantages[i].item<double>() * ratio[i].item<double>(), 1e-12) << i;
    }
  }
  EXPECT_FALSE(loss.ratio.requires_grad());
}

TEST(PpoClipLoss, OnFreshSamplesHasTheGradientOfThePolicyGradient) {
  const at::Tensor old_log_probs = Numbers({-0.1, -1, -7});
  const at::Tensor advantages = Numbers({1.5, -0.5, 0});
  const at::Tensor log_probs = old_log_probs.clone().set_requires_grad(true);
  const PolicyLoss loss = PpoClipLoss(log_probs, old_log_probs, advantages, 0.2, 0.2);
  EXPECT_TRUE(at::equal(loss.ratio, at::ones({3}, at::kDouble)));
  EXPECT_TRUE(at::equal(torch::autograd::grad({loss.per_token.sum()}, {log_probs})[0], -advantages));
}

TEST(PpoClipLoss, HasTheGradientsOfItsFormula) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(4);
  const at::Tensor old_log_probs = -at::rand({200}, generator, at::kDouble);
  const at::Tensor log_probs = old_log_probs + 0.4 * at::randn({200}, generator, at::kDouble);
  const at::Tensor advantages = at::randn({200}, generator, at::kDouble);
  const PolicyLoss loss = PpoClipLoss(log_probs, old_log_probs, advantages, 0.2, 0.28);
  const int64_t clipped = loss.clipped.sum().item<int64_t>();
  ASSERT_TRUE(clipped > 20 && clipped < 180) << clipped;
  EXPECT_TRUE(GradientsMatch(
      [&](const auto& x) { return PpoClipLoss(x[0], old_log_probs, advantages, 0.2, 0.28).per_token; }, {log_probs}));
}

TEST(PpoClipLoss, TakesAdvantagesAndOldLogProbsAsConstants) {
  const at::Tensor log_probs = Numbers({-1, -2}).set_requires_grad(true);
  const at::Tensor advantages = Numbers({1, -1}).set_requires_grad(true);
  const at::Tensor loss = PpoClipLoss(log_probs, log_probs, advantages, 0.2, 0.2).per_token.sum();
  const auto gradients = torch::autograd::grad({loss}, {log_probs, advantages}, {}, std::nullopt,
                                               /*create_graph=*/false, /*allow_unused=*/true);
  EXPECT_TRUE(at::equal(gradients[0], Numbers({-1, 1})));
  EXPECT_FALSE(gradients[1].defined());
}

TEST(PpoClipLoss, RefusesToBroadcast) {
  const at::Tensor two = at::zeros({2});
  EXPECT_THROW(PpoClipLoss(two, two, at::zeros({1}), 0.2, 0.2), c10::Error);
  EXPECT_THROW(PpoClipLoss(two, at::zeros({2, 1}), two, 0.2, 0.2), c10::Error);
}

TEST(TokenMean, LeavesOutWhatIsMaskedWhateverItHolds) {
  const at::Tensor values = Numbers({1, kInfinity, 2, kNan, -kInfinity, 6}).set_requires_grad(true);
  const at::Tensor mask = Numbers({1, 0, 1, 0, 0, 1});
  const at::Tensor mean = TokenMean(values, mask, 3);
  EXPECT_EQ(mean.item<double>(), 3.0);
  EXPECT_TRUE(at::equal(torch::autograd::grad({mean}, {values})[0], mask / 3));
}

TEST(TokenMean, OfPartsAddsUpToThatOfTheWholeWithItsGradients) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(6);
  const at::Tensor values = at::randn({100}, generator, at::kDouble).set_requires_grad(true);
  const at::Tensor mask = (at::rand({100}, generator, at::kDouble) < 0.7).to(at::kDouble);
  const double count = mask.sum().item<double>();
  const at::Tensor whole = TokenMean(values, mask, count);
  EXPECT_NEAR(whole.item<double>(), ((values * mask).sum() / count).item<double>(), 1e-12);
  const at::Tensor whole_gradient = torch::autograd::grad({whole}, {values}, {}, /*retain_graph=*/true)[0];
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{{50, 50}, {1, 98, 1}, {0, 33, 67}}) {
    double sum = 0;
    at::Tensor gradient = at::zeros({100}, at::kDouble);
    int64_t begin = 0;
    for (const int64_t size : sizes) {
      const at::Tensor part = TokenMean(values.narrow(0, begin, size), mask.narrow(0, begin, size), count);
      sum += part.item<double>();
      gradient += torch::autograd::grad({part}, {values})[0];
      begin += size;
    }
    EXPECT_NEAR(sum, whole.item<double>(), 1e-12);
    EXPECT_TRUE(at::allclose(gradient, whole_gradient, 0, 1e-15));
  }
}

TEST(TokenMean, RefusesAMeanOverNothing) {
  const at::Tensor none = at::zeros({3});
  EXPECT_THROW(TokenMean(none, none, 0), c10::Error);
  EXPECT_THROW(TokenMean(none, none, kNan), c10::Error);
  EXPECT_THROW(TokenMean(none, at::ones({2}), 2), c10::Error);
}

TEST(ActorLoss, LeavesOutWhatIsMaskedWhateverItHolds) {
  const at::Tensor mask = Numbers({1, 0, 0, 1, 0});
  const at::Tensor old_log_probs = Numbers({-1, -1e9, kNan, -2, -100});
  const at::Tensor log_probs = Numbers({-1.1, -1, -3, -1.9, -1}).set_requires_grad(true);
  const at::Tensor advantages = Numbers({1, kNan, kInfinity, -1, 1e30});
  const auto loss = [&](double kl_coef) {
    return ComputeActorLoss(log_probs, old_log_probs, old_log_probs, advantages, mask, 2, {.kl_coef = kl_coef}).loss;
  };
  const at::Tensor gradient = torch::autograd::grad({loss(1.0)}, {log_probs})[0];
  EXPECT_TRUE(at::equal(gradient.index_select(0, at::tensor({1, 2, 4})), at::zeros({3}, at::kDouble))) << gradient;
  EXPECT_NEAR(gradient[0].item<double>(), (-std::exp(-0.1) + 1 - std::exp(0.1)) / 2, 1e-12);
  EXPECT_NEAR(loss(0).item<double>(), (-std::exp(-0.1) + std::exp(0.1)) / 2, 1e-12);
}

TEST(ActorLoss, HasTheGradientsOfItsFormula) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(8);
  const at::Tensor old_log_probs = -at::rand({60}, generator, at::kDouble);
  const at::Tensor ref = old_log_probs + 0.1 * at::randn({60}, generator, at::kDouble);
  const at::Tensor advantages = at::randn({60}, generator, at::kDouble);
  const at::Tensor mask = (at::rand({60}, generator, at::kDouble) < 0.8).to(at::kDouble);
  const auto loss = [&](const std::vector<at::Tensor>& x) {
    return ComputeActorLoss(x[0], old_log_probs, ref, advantages, mask, mask.sum().item<double>(), {.kl_coef = 0.02})
        .loss;
  };
  EXPECT_TRUE(GradientsMatch(loss, {old_log_probs + 0.4 * at::randn({60}, generator, at::kDouble)}));
}

// The checker itself must be able to say no.
TEST(GradientsMatch, FindsAWrongGradient) {
  const auto detached_factor = [](const std::vector<at::Tensor>& x) { return x[0] * x[0].detach(); };
  EXPECT_FALSE(GradientsMatch(detached_factor, {Numbers({1, 2})}));
  EXPECT_TRUE(GradientsMatch([](const std::vector<at::Tensor>& x) { return x[0] * x[0]; }, {Numbers({1, 2})}));
  EXPECT_FALSE(GradientsMatch([](const std::vector<at::Tensor>& x) { return x[0]; }, {at::zeros({1})}));
}

}  // namespace
}  // namespace tdock::algo
