// Faults that other systems have or had, each a test that this module does not have it.
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "trainer/algo/advantage.h"
#include "trainer/algo/covariance.h"
#include "trainer/algo/kl.h"
#include "trainer/algo/policy_loss.h"
#include "trainer/algo/preference.h"
#include "trainer/algo/testing/numbers.h"
#include "trainer/algo/value_loss.h"

namespace tdock::algo {
namespace {

// The tokens [begin, end) of a batch.
Tokens Part(const Tokens& tokens, int64_t begin, int64_t end) {
  return {tokens.mask.slice(0, begin, end), tokens.sequence.slice(0, begin, end) - tokens.sequence[begin],
          (tokens.sequence[end - 1] - tokens.sequence[begin]).item<int64_t>() + 1};
}

struct Whole {
  Tokens tokens = MakeTokens((Normal(40, 1) < 0.8).to(at::kDouble), std::vector<int64_t>{10, 2, 8, 20});
  at::Tensor old_log_probs = -Normal(40, 2).abs();
  at::Tensor log_probs = (old_log_probs + 0.3 * Normal(40, 3)).set_requires_grad(true);
  at::Tensor advantages = Spread(Normal(4, 4), tokens);
  at::Tensor ref_log_probs = old_log_probs + Normal(40, 5);
  at::Tensor entropy = Normal(40, 6).abs().set_requires_grad(true);
  at::Tensor rollout_weights = Normal(40, 7).abs() + 0.1;
  at::Tensor selected = LargestCovariance(old_log_probs, advantages, tokens, 0.2);

  ActorInputs Inputs(int64_t begin, int64_t end) const {
    return {.log_probs = log_probs.slice(0, begin, end),
            .old_log_probs = old_log_probs.slice(0, begin, end),
            .advantages = advantages.slice(0, begin, end),
            .ref_log_probs = ref_log_probs.slice(0, begin, end),
            .entropy = entropy.slice(0, begin, end),
            .rollout_weights = rollout_weights.slice(0, begin, end),
            .selected = selected.slice(0, begin, end)};
  }
};

// verl §3: the token mean, and every other aggregation, depends on the micro-batch split.
TEST(Faults, TheGradientDependsOnTheMicroBatchSplit) {
  const Whole whole;
  const Counts counts = CountsOf(whole.tokens);
  for (const PolicyLossKind kind :
       {PolicyLossKind::kPpoClip, PolicyLossKind::kGspo, PolicyLossKind::kSequenceClip, PolicyLossKind::kCispo,
        PolicyLossKind::kGpg, PolicyLossKind::kClipCov, PolicyLossKind::kKlCov, PolicyLossKind::kGmpo,
        PolicyLossKind::kSapo, PolicyLossKind::kVespo}) {
    for (const Aggregation how : {Aggregation::kTokenMean, Aggregation::kSeqMeanTokenSum,
                                  Aggregation::kSeqMeanTokenMean, Aggregation::kSeqMeanTokenSumNorm}) {
      const bool of_sequences =
          kind == PolicyLossKind::kGspo || kind == PolicyLossKind::kSequenceClip || kind == PolicyLossKind::kGmpo;
      const bool luspo = kind == PolicyLossKind::kGspo && how == Aggregation::kSeqMeanTokenSum;
      if (of_sequences && how != Aggregation::kSeqMeanTokenMean && !luspo) continue;
      const ActorLossOptions options{.kl_coef = 0.1, .entropy_coef = 0.2, .kind = kind, .reduction = {how, 20}};
      const auto part = [&](int64_t begin, int64_t end) {
        const at::Tensor loss =
            ComputeActorLoss(whole.Inputs(begin, end), Part(whole.tokens, begin, end), counts, options).loss;
        return std::pair(loss.item<double>(), at::cat(torch::autograd::grad({loss}, {whole.log_probs, whole.entropy})));
      };
      const auto [loss, gradient] = part(0, 40);
      for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{0, 20, 40}, {0, 10, 12, 20, 40}, {0, 12, 40}}) {
        double sum = 0;
        at::Tensor gradients = at::zeros_like(gradient);
        for (size_t i = 0; i + 1 < cuts.size(); ++i) {
          const auto [more, its_gradient] = part(cuts[i], cuts[i + 1]);
          sum += more;
          gradients = gradients + its_gradient;
        }
        EXPECT_NEAR(sum, loss, 1e-12) << static_cast<int>(kind) << " " << static_cast<int>(how);
        EXPECT_TRUE(at::allclose(gradients, gradient, 1e-6, 1e-14))
            << static_cast<int>(kind) << " " << static_cast<int>(how);
      }
    }
  }
}

// verl: the value loss takes no global counts, so a critic's gradient depends on the split as well.
TEST(Faults, TheValueLossDependsOnTheMicroBatchSplit) {
  const Whole whole;
  const Counts counts = CountsOf(whole.tokens);
  const auto part = [&](int64_t begin, int64_t end) {
    return ComputeValueLoss(whole.log_probs.slice(0, begin, end), whole.old_log_probs.slice(0, begin, end),
                            whole.advantages.slice(0, begin, end), Part(whole.tokens, begin, end), counts)
        .loss.item<double>();
  };
  EXPECT_NEAR(part(0, 10) + part(10, 40), part(0, 40), 1e-12);
}

// verl: kl-cov and clip-cov choose among the tokens of a micro-batch.
TEST(Faults, TheChoiceOfHighCovarianceDependsOnTheMicroBatchSplit) {
  const Whole whole;
  const auto choose = [&](int64_t begin, int64_t end) {
    return LargestCovariance(whole.old_log_probs.slice(0, begin, end), whole.advantages.slice(0, begin, end),
                             Part(whole.tokens, begin, end), 0.2);
  };
  // The choice is an input of the loss because it would be another one in each part.
  EXPECT_FALSE(at::equal(at::cat({choose(0, 20), choose(20, 40)}), whole.selected));
}

// verl: a return to go ends at a tool's output, so that what was written before it is never rewarded.
TEST(Faults, TheReturnToGoEndsAtATool) {
  const Tokens tokens = MakeTokens(Numbers({1, 0, 0, 1}), std::vector<int64_t>{4});
  const at::Tensor rewards = TokenRewards(Numbers({3}), {}, {}, tokens);
  EXPECT_TRUE(Near(ReinforcePlusPlusAdvantages(rewards, tokens).returns, {3, 0, 0, 3}, 0));
  EXPECT_TRUE(Near(RemaxAdvantages(rewards, Numbers({1}), tokens).advantages, {2, 0, 0, 2}, 0));
  EXPECT_TRUE(
      Near(GaeAdvantages(rewards, at::zeros({4}, at::kDouble), tokens, {.lambda = 1}).advantages, {3, 0, 0, 3}, 0));
}

// verl: a reward on the last token is lost where that token is a tool's.
TEST(Faults, ARewardOnAMaskedLastTokenIsLost) {
  const Tokens tokens = MakeTokens(Numbers({1, 1, 0}), std::vector<int64_t>{3});
  EXPECT_TRUE(Near(TokenRewards(Numbers({3}), {}, {}, tokens), {0, 3, 0}, 0));
}

// verl: a masked loss is multiplied by 0, and infinity times 0 is not a number.
TEST(Faults, AMaskedInfinityMakesTheLossNan) {
  const Tokens tokens = MakeTokens(Numbers({1, 0}), std::vector<int64_t>{2});
  EXPECT_EQ(Aggregate(Numbers({2, kInfinity}), tokens, CountsOf(tokens)).item<double>(), 2);
}

// verl: k3 is clamped to at most 10, so that the tokens farthest from the reference have no gradient back to it.
TEST(Faults, TheKlHasNoGradientWhereItIsLarge) {
  const at::Tensor log_probs = Numbers({-8}).set_requires_grad(true);
  const at::Tensor kl = KlDivergence(log_probs, Numbers({-1}), KlEstimator::kK3);
  EXPECT_NEAR(torch::autograd::grad({kl.sum()}, {log_probs})[0].item<double>(), 1 - std::exp(7), 1e-9);
}

// verl: GSPO and GMPO ignore the aggregation that was asked for.
TEST(Faults, TheAggregationThatWasAskedForIsIgnored) {
  const at::Tensor one = at::zeros({1}, at::kDouble);
  const ActorInputs inputs{.log_probs = one, .old_log_probs = one, .advantages = one};
  for (const PolicyLossKind kind : {PolicyLossKind::kGspo, PolicyLossKind::kGmpo}) {
    EXPECT_THAT(ErrorOf([&] {
                  ComputeActorLoss(inputs, All({1}), {1, 1}, {.kind = kind, .reduction = {Aggregation::kTokenMean}});
                }),
                Mentions({"seq-mean-token-mean"}));
  }
}

// DeepSpeed-Chat, fault 1: with a padding token that equals the end token, the end is masked out. Here the end token
// counts because the mask says so, and no function is given a token.
TEST(Faults, APaddingThatEqualsTheEndTokenErasesTheEnd) {
  const Tokens tokens = MakeTokens(Numbers({1, 1, 1, 0, 0}), std::vector<int64_t>{5});  // a, b, end, two of padding
  EXPECT_TRUE(Near(TokenRewards(Numbers({1}), {}, {}, tokens), {0, 0, 1, 0, 0}, 0));
  const at::Tensor log_probs = Numbers({-1, -2, -3, -4, -5}).set_requires_grad(true);
  const at::Tensor loss = SupervisedLoss(log_probs, tokens, CountsOf(tokens));
  EXPECT_TRUE(Near(torch::autograd::grad({loss}, {log_probs})[0], {-1.0 / 3, -1.0 / 3, -1.0 / 3, 0, 0}, 1e-15));
}

// Fault 2: generation and scoring use different masks. Here whatever does not fit the one mask is refused.
TEST(Faults, ScoringUsesAnotherMaskThanGeneration) {
  const at::Tensor three = at::zeros({3}, at::kDouble), four = at::zeros({4}, at::kDouble);
  EXPECT_THAT(ErrorOf([&] {
                ComputePolicyLoss({three, four, three}, All({3}), {});
              }),
              Mentions({"old log-probabilities", "[4]", "[3]"}));
  EXPECT_THAT(ErrorOf([&] { GaeAdvantages(three, four, All({3})); }), Mentions({"values", "[4]", "[3]"}));
}

// Fault 4: old log-probabilities that were computed with dropout make a ratio other than 1 on the first pass. Where
// they are the policy's own, the ratio is exactly 1, nothing is clipped, and the second epoch is clipped where it has
// moved.
TEST(Faults, TheRatioIsNotOneOnTheFirstPass) {
  const at::Tensor old = -Normal(100, 1).abs(), advantages = Normal(100, 2);
  const auto epoch = [&](const at::Tensor& log_probs) {
    return ComputePolicyLoss({log_probs, old, advantages}, All({100}), {});
  };
  const PolicyLoss first = epoch(old);
  EXPECT_TRUE(at::equal(first.ratio, at::ones({100}, at::kDouble)));
  EXPECT_FALSE(first.clipped.any().item<bool>());
  const PolicyLoss second = epoch(old + 0.5 * advantages);
  EXPECT_TRUE(second.clipped.any().item<bool>());
  EXPECT_FALSE(second.clipped.all().item<bool>());
}

// Fault 5: no normalisation of advantages, no adaptive KL, no figures of KL, entropy and clipping.
TEST(Faults, AdvantagesAreNotNormalisedAndTheKlCoefficientIsFixed) {
  const Tokens tokens = All({3});
  const at::Tensor rewards = Numbers({10, 20, 60});
  const TokenAdvantages gae = GaeAdvantages(rewards, at::zeros({3}, at::kDouble), tokens, {.whiten = true});
  EXPECT_NEAR(gae.advantages.mean().item<double>(), 0, 1e-12);
  EXPECT_NEAR(gae.advantages.var().item<double>(), 1, 1e-6);
  EXPECT_GT(AdaptedKlCoef(0.1, 0.5, 100, {.kl = 0.1, .horizon = 1000}), 0.1);
  const at::Tensor old = Numbers({-1, -1, -1});
  const ActorLoss loss = ComputeActorLoss(
      {.log_probs = Numbers({-0.5, -1, -1.5}), .old_log_probs = old, .advantages = rewards, .ref_log_probs = old},
      tokens, CountsOf(tokens), {});
  EXPECT_TRUE(at::equal(loss.policy.clipped, Integers({1, 0, 0}) != 0));
  EXPECT_GT(loss.kl[0].item<double>(), 0);
}

// Fault 11: prompt tokens in the loss of supervised fine-tuning. What is a prompt is masked, and its log-probabilities
// change nothing.
TEST(Faults, ThePromptIsInTheSupervisedLoss) {
  const Tokens tokens = MakeTokens(Numbers({0, 0, 1, 1}), std::vector<int64_t>{4});
  const auto loss = [&](double prompt) {
    return SupervisedLoss(Numbers({prompt, prompt, -1, -3}), tokens, CountsOf(tokens)).item<double>();
  };
  EXPECT_EQ(loss(-100), 2);
  EXPECT_EQ(loss(-kInfinity), 2);
}

}  // namespace
}  // namespace tdock::algo
