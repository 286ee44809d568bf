#include "trainer/algo/policy_loss.h"

#include <gmock/gmock.h>

#include <cmath>

#include "trainer/algo/testing/gradient_check.h"
#include "trainer/algo/testing/numbers.h"

namespace tdock::algo {
namespace {

constexpr PolicyLossKind kKinds[] = {PolicyLossKind::kPpoClip, PolicyLossKind::kGspo, PolicyLossKind::kSequenceClip,
                                     PolicyLossKind::kCispo,   PolicyLossKind::kGpg,  PolicyLossKind::kClipCov,
                                     PolicyLossKind::kKlCov,   PolicyLossKind::kGmpo, PolicyLossKind::kSapo,
                                     PolicyLossKind::kVespo};

bool OfSequences(PolicyLossKind kind) {
  return kind == PolicyLossKind::kGspo || kind == PolicyLossKind::kSequenceClip || kind == PolicyLossKind::kGmpo;
}

ActorLossOptions OptionsOf(PolicyLossKind kind) {
  return {.clip_low = 0.2,
          .clip_high = 0.28,
          .kind = kind,
          .reduction = {OfSequences(kind) ? Aggregation::kSeqMeanTokenMean : Aggregation::kTokenMean}};
}

PolicyLoss PpoClip(const at::Tensor& log_probs, const at::Tensor& old_log_probs, const at::Tensor& advantages,
                   const ActorLossOptions& options) {
  return ComputePolicyLoss({.log_probs = log_probs, .old_log_probs = old_log_probs, .advantages = advantages},
                           {.mask = at::ones_like(log_probs)}, options);
}

double PolicyPart(const at::Tensor& log_probs, const at::Tensor& old_log_probs, const at::Tensor& advantages,
                  const at::Tensor& mask) {
  const Tokens tokens{.mask = mask};
  return ComputeActorLoss({.log_probs = log_probs, .old_log_probs = old_log_probs, .advantages = advantages}, tokens,
                          CountsOf(tokens), {})
      .loss.item<double>();
}

// Six sequences of up to nine tokens with one advantage each, some tokens masked; new log-probabilities that have moved
// by about 0.3.
struct Batch {
  Tokens tokens;
  ActorInputs inputs;
};

Batch RandomBatch(uint64_t seed) {
  const std::vector<int64_t> lengths = {4, 9, 1, 7, 5, 6};
  const at::Tensor mask = (Normal(32, seed) < 1.0).to(at::kDouble).index_fill(0, Integers({0, 13}), 1.0);
  const Tokens tokens = MakeTokens(mask, lengths);
  const at::Tensor old = -Normal(32, seed + 1).abs();
  return {tokens,
          {.log_probs = old + 0.3 * Normal(32, seed + 2),
           .old_log_probs = old,
           .advantages = Spread(Normal(6, seed + 3), tokens),
           .ref_log_probs = old + 0.1 * Normal(32, seed + 4),
           .entropy = Normal(32, seed + 5).abs(),
           .rollout_weights = Normal(32, seed + 6).abs() + 0.1,
           .selected = Normal(32, seed + 7) > 1.0}};
}

double Loss(const Batch& batch, const ActorLossOptions& options) {
  return ComputeActorLoss(batch.inputs, batch.tokens, CountsOf(batch.tokens), options).loss.item<double>();
}

// DeepSpeed-Chat's end-to-end cases: an answer of five tokens, of which the mask keeps some.
TEST(PpoClipLoss, GivesThePublishedActorLosses) {
  const at::Tensor old_log_probs = Numbers({-1, -2, -0.5, -1.5, -0.3});
  const at::Tensor new_log_probs = Numbers({-0.7, -2.5, -0.4, -1.5, -0.3});
  const at::Tensor first_mask = Numbers({1, 1, 1, 0, 0});
  const at::Tensor first_advantages = Numbers({4.170937, 4.30625, 4.375, 4.5, 0});
  EXPECT_NEAR(PolicyPart(new_log_probs, old_log_probs, first_advantages, first_mask), -4.150707, 1e-6);
  EXPECT_NEAR(PolicyPart(old_log_probs, old_log_probs, first_advantages, first_mask), -4.284063, 1e-6);
  const at::Tensor second_advantages = Numbers({-1.087772, -1.229234, -1.451825, -1.6335, -1.93});
  EXPECT_NEAR(PolicyPart(new_log_probs, old_log_probs, second_advantages, at::ones({5}, at::kDouble)), 1.523948, 1e-6);
}

TEST(PpoClipLoss, ClipsOnlyWhereTheRatioHasMovedTheWayTheAdvantagePushes) {
  // Ratios: inside, above and below the range 0.9 … 1.3, for both signs of the advantage.
  const at::Tensor ratio = Numbers({1.1, 1.5, 0.5, 1.1, 1.5, 0.5});
  const at::Tensor advantages = Numbers({2, 2, 2, -2, -2, -2});
  const at::Tensor log_probs = ratio.log().set_requires_grad(true);
  const PolicyLoss loss =
      PpoClip(log_probs, at::zeros({6}, at::kDouble), advantages, {.clip_low = 0.1, .clip_high = 0.3});

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
  const PolicyLoss loss = PpoClip(log_probs, old_log_probs, advantages, {});
  EXPECT_TRUE(at::equal(loss.ratio, at::ones({3}, at::kDouble)));
  EXPECT_TRUE(at::equal(torch::autograd::grad({loss.per_token.sum()}, {log_probs})[0], -advantages));
}

TEST(PpoClipLoss, TakesAdvantagesAndOldLogProbsAsConstants) {
  const at::Tensor log_probs = Numbers({-1, -2}).set_requires_grad(true);
  const at::Tensor advantages = Numbers({1, -1}).set_requires_grad(true);
  const at::Tensor loss = PpoClip(log_probs, log_probs, advantages, {}).per_token.sum();
  const auto gradients = torch::autograd::grad({loss}, {log_probs, advantages}, {}, std::nullopt,
                                               /*create_graph=*/false, /*allow_unused=*/true);
  EXPECT_TRUE(at::equal(gradients[0], Numbers({-1, 1})));
  EXPECT_FALSE(gradients[1].defined());
}

TEST(PpoClipLoss, IsHeldByTheDualClipWhereTheAdvantageIsNegative) {
  const at::Tensor log_probs = Numbers({2, 5, 2, 5}).log().set_requires_grad(true);
  const PolicyLoss loss = PpoClip(log_probs, at::zeros({4}, at::kDouble), Numbers({-1, -1, 1, 1}), {.dual_clip = 3});
  EXPECT_TRUE(Near(loss.per_token.detach(), {2, 3, -1.2, -1.2}, 1e-12));
  EXPECT_TRUE(at::equal(loss.dual, Integers({0, 1, 0, 0}) != 0));
  EXPECT_TRUE(Near(torch::autograd::grad({loss.per_token.sum()}, {log_probs})[0], {2, 0, 0, 0}, 1e-12));
  EXPECT_THAT(ErrorOf([&] { PpoClip(log_probs, log_probs, log_probs, {.dual_clip = 1}); }),
              Mentions({"dual_clip", "not 1"}));
}

TEST(PpoClipLoss, LimitsARatioThatWouldOverflow) {
  const at::Tensor log_probs = Numbers({-1, -1}).set_requires_grad(true);
  const PolicyLoss loss = PpoClip(log_probs, Numbers({-2000, -2000}), Numbers({-1, 1}), {});
  EXPECT_TRUE(Near(loss.per_token.detach(), {std::exp(20), -1.2}, 1e-3));
  EXPECT_TRUE(Near(torch::autograd::grad({loss.per_token.sum()}, {log_probs})[0], {0, 0}, 0));
}

TEST(GspoLoss, HasTheLengthNormalisedRatioOfTheSequence) {
  const Tokens tokens = MakeTokens(Numbers({1, 1, 0, 1}), std::vector<int64_t>{3, 1});
  const at::Tensor log_probs = Numbers({0.1, 0.3, kNan, -0.6}).set_requires_grad(true);
  const PolicyLoss loss = ComputePolicyLoss(
      {.log_probs = log_probs, .old_log_probs = at::zeros({4}, at::kDouble), .advantages = Numbers({1, 1, 1, -1})},
      tokens, OptionsOf(PolicyLossKind::kGspo));
  const double first = std::exp(0.2), second = std::exp(-0.6);
  EXPECT_TRUE(Near(loss.ratio, {first, first, 1, second}, 1e-12));
  EXPECT_TRUE(Near(loss.per_token.detach(), {-first, -first, 0, 0.8}, 1e-12));
  EXPECT_TRUE(Near(torch::autograd::grad({loss.per_token.sum()}, {log_probs})[0], {-first, -first, 0, 0}, 1e-12));
}

TEST(GspoLoss, KeepsTheDigitsOfItsRatioInFloat32) {
  const at::Tensor log_probs = Numbers({-0.1, -200, -300}).to(at::kFloat);
  const at::Tensor old = Numbers({-0.1123, -200.001, -300.002}).to(at::kFloat);
  const PolicyLoss loss = ComputePolicyLoss({.log_probs = log_probs, .old_log_probs = old, .advantages = at::ones({3})},
                                            All({3}), OptionsOf(PolicyLossKind::kGspo));
  const double ratio = (log_probs.to(at::kDouble) - old.to(at::kDouble)).mean().exp().item<double>();
  EXPECT_TRUE(Near(loss.ratio, {ratio, ratio, ratio}, 2e-7));
}

TEST(SequenceClipLoss, HasTheRatioOfTheWholeSequence) {
  const PolicyLoss loss = ComputePolicyLoss({.log_probs = Numbers({0.01, 0.03, -0.6}),
                                             .old_log_probs = at::zeros({3}, at::kDouble),
                                             .advantages = Numbers({1, 1, -1})},
                                            All({2, 1}), OptionsOf(PolicyLossKind::kSequenceClip));
  EXPECT_TRUE(Near(loss.per_token, {-std::exp(0.04), -std::exp(0.04), 0.8}, 1e-12));
}

TEST(CispoLoss, ClipsTheWeightAndNotTheGradient) {
  const at::Tensor log_probs = Numbers({-0.5, -1.5, -1}).set_requires_grad(true);
  const PolicyLoss loss = PpoClip(log_probs, Numbers({-1, -1, -1}), Numbers({2, 2, -1}),
                                  {.clip_low = 0.2, .clip_high = 0.3, .kind = PolicyLossKind::kCispo});
  EXPECT_TRUE(Near(loss.per_token.detach(), {1.3 * 2 * 0.5, 0.8 * 2 * 1.5, -1}, 1e-12));
  EXPECT_TRUE(Near(torch::autograd::grad({loss.per_token.sum()}, {log_probs})[0], {-2.6, -1.6, 1}, 1e-12));
  EXPECT_TRUE(at::equal(loss.clipped, Integers({1, 1, 0}) != 0));
}

TEST(GpgLoss, IsThePolicyGradientWithoutOldLogProbs) {
  const PolicyLoss loss = ComputePolicyLoss({.log_probs = Numbers({-2, -3}), .advantages = Numbers({1, -0.5})},
                                            All({2}), OptionsOf(PolicyLossKind::kGpg));
  EXPECT_TRUE(Near(loss.per_token, {2, -1.5}, 1e-12));
}

TEST(ClipCovLoss, LeavesOutTheSelectedTokens) {
  const at::Tensor log_probs = Numbers({0.1, 0.1, 1}).set_requires_grad(true);
  ActorInputs inputs{.log_probs = log_probs,
                     .old_log_probs = at::zeros({3}, at::kDouble),
                     .advantages = Numbers({1, 1, 1}),
                     .selected = Integers({0, 1, 0}) != 0};
  const PolicyLoss loss = ComputePolicyLoss(inputs, All({3}), OptionsOf(PolicyLossKind::kClipCov));
  EXPECT_TRUE(Near(loss.per_token.detach(), {-std::exp(0.1), 0, -1.28}, 1e-12));
  EXPECT_TRUE(at::equal(loss.clipped, Integers({0, 1, 1}) != 0));
  EXPECT_TRUE(Near(torch::autograd::grad({loss.per_token.sum()}, {log_probs})[0], {-std::exp(0.1), 0, 0}, 1e-12));
  inputs.selected = at::Tensor();
  EXPECT_THAT(ErrorOf([&] { ComputePolicyLoss(inputs, All({3}), OptionsOf(PolicyLossKind::kClipCov)); }),
              Mentions({"clip-cov", "selected"}));
}

TEST(KlCovLoss, PenalisesTheSelectedTokensOnly) {
  const PolicyLoss loss = ComputePolicyLoss({.log_probs = Numbers({0.1, -0.5, 1}),
                                             .old_log_probs = at::zeros({3}, at::kDouble),
                                             .advantages = Numbers({1, 1, 1}),
                                             .selected = Integers({0, 1, 0}) != 0},
                                            All({3}), OptionsOf(PolicyLossKind::kKlCov));
  EXPECT_TRUE(Near(loss.per_token, {-std::exp(0.1), -std::exp(-0.5) + 0.5, -std::exp(1)}, 1e-12));
}

TEST(GmpoLoss, IsTheGeometricMeanOfClippedRatios) {
  // Upward moves are held where A > 0, downward ones where A < 0.
  const Tokens tokens = MakeTokens(Numbers({1, 1, 0, 1, 1}), std::vector<int64_t>{3, 2});
  const PolicyLoss loss = ComputePolicyLoss({.log_probs = Numbers({0.9, -0.9, kNan, 0.9, -0.9}),
                                             .old_log_probs = at::zeros({5}, at::kDouble),
                                             .advantages = Numbers({2, 2, 2, -1, -1})},
                                            tokens, OptionsOf(PolicyLossKind::kGmpo));
  const double up = std::exp((0.28 - 0.9) / 2), down = std::exp((0.9 - 0.2) / 2);
  EXPECT_TRUE(Near(loss.per_token, {-2 * up, -2 * up, 0, down, down}, 1e-12));
  EXPECT_TRUE(at::equal(loss.clipped, Integers({1, 0, 0, 0, 1}) != 0));
}

TEST(SapoLoss, IsASoftGateOfTheRatio) {
  const PolicyLoss loss = PpoClip(Numbers({0, 1}), Numbers({0, 0}), Numbers({2, -1}),
                                  {.kind = PolicyLossKind::kSapo, .sapo_tau = {.positive = 1, .negative = 2}});
  EXPECT_TRUE(Near(loss.per_token, {-2 * 4 * 0.5, 2 / (1 + std::exp(-2 * (std::exp(1) - 1)))}, 1e-12));
  EXPECT_THAT(ErrorOf([&] {
                PpoClip(loss.ratio, loss.ratio, loss.ratio, {.sapo_tau = {0, 1}});
              }),
              Mentions({"SAPO", "not 0 and 1"}));
}

TEST(VespoLoss, WeighsASequenceByTheGammaOfItsRatio) {
  const ActorInputs inputs{.log_probs = Numbers({-1, -2, -3}),
                           .old_log_probs = Numbers({-1.1, -2.3, -3}),
                           .advantages = Numbers({1, 1, -2}),
                           .rollout_weights = Numbers({1, 1, 0.5})};
  const PolicyLoss loss = ComputePolicyLoss(inputs, All({2, 1}), OptionsOf(PolicyLossKind::kVespo));
  const double first = std::exp(3 + 2 * 0.4 - 3 * std::exp(0.4)), second = std::exp(2 + 3 * std::log(0.5) - 2 * 0.5);
  EXPECT_TRUE(Near(loss.per_token, {first, 2 * first, -6 * second}, 1e-12));
}

TEST(VespoLoss, HasTheWeightOfASequenceOnceWhateverItsLength) {
  const auto per_token = [](const at::Tensor& weights, ImportanceLevel level) {
    return ComputePolicyLoss({.log_probs = Numbers({-1, -2, -3, -4}),
                              .old_log_probs = Numbers({-1, -2, -3, -4}),
                              .advantages = Numbers({1, 1, 1, -2}),
                              .rollout_weights = weights,
                              .rollout_level = level},
                             MakeTokens(Numbers({1, 0, 1, 1}), std::vector<int64_t>{3, 1}),
                             OptionsOf(PolicyLossKind::kVespo))
        .per_token;
  };
  const double first = std::exp(3 + 2 * std::log(0.5) - 3 * 0.5), second = std::exp(2 + 3 * std::log(2.0) - 2 * 2);
  EXPECT_TRUE(Near(per_token(Numbers({0.5, 0, 0.5, 2}), ImportanceLevel::kSequence), {first, 0, 3 * first, -8 * second},
                   1e-12));
  EXPECT_TRUE(
      Near(per_token(Numbers({2, 0, 0.25, 2}), ImportanceLevel::kToken), {first, 0, 3 * first, -8 * second}, 1e-12));
}

TEST(ActorLoss, OfEveryKindHasARatioOfOneAndNothingClippedWhereMasked) {
  for (const PolicyLossKind kind : kKinds) {
    const Batch batch = RandomBatch(50);
    const at::Tensor masked = batch.tokens.mask == 0;
    const ActorInputs inputs = [&] {
      ActorInputs with = batch.inputs;
      with.selected = with.selected.logical_and(masked.logical_not());
      return with;
    }();
    const PolicyLoss loss = ComputePolicyLoss(inputs, batch.tokens, OptionsOf(kind));
    EXPECT_TRUE((loss.ratio.masked_select(masked) == 1).all().item<bool>()) << static_cast<int>(kind);
    EXPECT_FALSE(loss.clipped.masked_select(masked).any().item<bool>()) << static_cast<int>(kind);
  }
}

TEST(ActorLoss, OfEveryKindHasTheGradientsOfItsFormula) {
  for (const PolicyLossKind kind : kKinds) {
    Batch batch = RandomBatch(10);
    // GSPO's gradient is that of its formula where nothing differs between the tokens of a sequence.
    if (kind == PolicyLossKind::kGspo) batch.inputs.rollout_weights = Spread(Normal(6, 1).abs() + 0.1, batch.tokens);
    ActorLossOptions options = OptionsOf(kind);
    options.dual_clip = 1.5;
    options.kl_coef = 0.02;
    options.entropy_coef = 0.01;
    // The weights of CISPO and VESPO are constants, so the formula is that of a policy gradient with those of one
    // point.
    const bool weighted = kind == PolicyLossKind::kCispo || kind == PolicyLossKind::kVespo;
    at::Tensor fixed = ComputePolicyLoss(batch.inputs, batch.tokens, options).per_token / batch.inputs.log_probs;
    fixed = Unmasked(-fixed, batch.tokens.mask);
    const auto loss = [&](const std::vector<at::Tensor>& x) {
      ActorInputs inputs = batch.inputs;
      inputs.log_probs = x[0];
      inputs.entropy = x[1];
      ActorLossOptions smooth = options;
      if (weighted) {
        smooth.kind = PolicyLossKind::kGpg;
        inputs.advantages = fixed;
        if (kind == PolicyLossKind::kVespo) inputs.rollout_weights = at::Tensor();
      }
      return ComputeActorLoss(inputs, batch.tokens, CountsOf(batch.tokens), smooth).loss;
    };
    ASSERT_TRUE(GradientsMatch(loss, {batch.inputs.log_probs, batch.inputs.entropy})) << static_cast<int>(kind);
    const at::Tensor log_probs = batch.inputs.log_probs.clone().set_requires_grad(true);
    ActorInputs inputs = batch.inputs;
    inputs.log_probs = log_probs;
    inputs.entropy = inputs.entropy.clone().set_requires_grad(true);
    const at::Tensor own = ComputeActorLoss(inputs, batch.tokens, CountsOf(batch.tokens), options).loss;
    EXPECT_TRUE(at::allclose(torch::autograd::grad({own}, {log_probs})[0],
                             torch::autograd::grad({loss({log_probs, inputs.entropy})}, {log_probs})[0], 0, 1e-14))
        << static_cast<int>(kind);
  }
}

TEST(ActorLoss, OfEveryKindLeavesOutWhatIsMaskedWhateverItHolds) {
  for (const PolicyLossKind kind : kKinds) {
    Batch batch = RandomBatch(20);
    ActorLossOptions options = OptionsOf(kind);
    options.kl_coef = options.entropy_coef = 0.1;
    const double before = Loss(batch, options);
    const at::Tensor masked = batch.tokens.mask == 0;
    ASSERT_TRUE(masked.any().item<bool>());
    for (at::Tensor* const input : {&batch.inputs.old_log_probs, &batch.inputs.advantages, &batch.inputs.ref_log_probs,
                                    &batch.inputs.entropy, &batch.inputs.rollout_weights}) {
      *input = input->masked_fill(masked, kNan);
    }
    batch.inputs.log_probs = batch.inputs.log_probs.masked_fill(masked, -kInfinity).set_requires_grad(true);
    batch.inputs.entropy.set_requires_grad(true);
    const ActorLoss loss = ComputeActorLoss(batch.inputs, batch.tokens, CountsOf(batch.tokens), options);
    EXPECT_EQ(loss.loss.item<double>(), before) << static_cast<int>(kind);
    const at::Tensor gradient = torch::autograd::grad({loss.loss}, {batch.inputs.log_probs})[0];
    EXPECT_EQ(gradient.masked_select(masked).count_nonzero().item<int64_t>(), 0) << gradient;
    EXPECT_TRUE(at::isfinite(gradient).all().item<bool>()) << gradient;
  }
}

TEST(ActorLoss, AddsTheKlAndTakesTheEntropyAway) {
  const Batch batch = RandomBatch(30);
  const ActorLossOptions plain = OptionsOf(PolicyLossKind::kPpoClip);
  ActorLossOptions with = plain;
  with.kl_coef = 0.3;
  with.entropy_coef = 0.7;
  const double tokens = CountsOf(batch.tokens).tokens;
  const at::Tensor kl = KlDivergence(batch.inputs.log_probs, batch.inputs.ref_log_probs, KlEstimator::kK3);
  const double more = (0.3 * TokenMean(kl, batch.tokens.mask, tokens) -
                       0.7 * TokenMean(batch.inputs.entropy, batch.tokens.mask, tokens))
                          .item<double>();
  EXPECT_NEAR(Loss(batch, with), Loss(batch, plain) + more, 1e-12);
}

TEST(ActorLoss, IsWeightedByTheRolloutAndOfGmpoByItsGeometricMean) {
  const Tokens tokens = All({2});
  ActorInputs inputs{.log_probs = Numbers({0.1, 0.1}),
                     .old_log_probs = Numbers({0, 0}),
                     .advantages = Numbers({1, 1}),
                     .rollout_weights = Numbers({2, 0.125})};
  const auto loss = [&](PolicyLossKind kind) {
    return ComputeActorLoss(inputs, tokens, CountsOf(tokens), OptionsOf(kind)).loss.item<double>();
  };
  EXPECT_NEAR(loss(PolicyLossKind::kPpoClip), -std::exp(0.1) * (2 + 0.125) / 2, 1e-12);
  EXPECT_NEAR(loss(PolicyLossKind::kGmpo), -std::exp(0.1) * 0.5, 1e-12);
}

TEST(ActorLoss, RefusesWhatItCannotUseByName) {
  const auto error = [](const std::function<void(Batch&, ActorLossOptions&)>& spoil) {
    Batch batch = RandomBatch(40);
    ActorLossOptions options = OptionsOf(PolicyLossKind::kPpoClip);
    spoil(batch, options);
    return ErrorOf([&] { ComputeActorLoss(batch.inputs, batch.tokens, CountsOf(batch.tokens), options); });
  };
  const at::Tensor infinite = at::full({32}, -kInfinity, at::kDouble);
  EXPECT_THAT(error([&](Batch& b, ActorLossOptions&) { b.inputs.log_probs = infinite; }),
              Mentions({"log-probabilities", "token 0", "sample 0", "-inf"}));
  EXPECT_THAT(error([&](Batch& b, ActorLossOptions&) { b.inputs.old_log_probs = infinite; }),
              Mentions({"old log-probabilities", "token 0", "sample 0", "-inf"}));
  EXPECT_THAT(error([&](Batch& b, ActorLossOptions&) { b.inputs.advantages = at::zeros({1}, at::kDouble); }),
              Mentions({"advantages", "[1]", "[32]"}));
  EXPECT_THAT(error([&](Batch& b, ActorLossOptions&) { b.inputs.rollout_weights = infinite; }),
              Mentions({"rollout weights", "token 0", "sample 0", "-inf"}));
  EXPECT_THAT(error([&](Batch& b, ActorLossOptions& o) { b.inputs.ref_log_probs = at::Tensor(), o.kl_coef = 1; }),
              Mentions({"log-probabilities", "reference", "missing"}));
  EXPECT_THAT(error([&](Batch& b, ActorLossOptions& o) { b.inputs.entropy = at::Tensor(), o.entropy_coef = 1; }),
              Mentions({"entropies", "missing"}));
  EXPECT_THAT(
      error([&](Batch& b, ActorLossOptions& o) { b.inputs.log_probs.set_requires_grad(true), o.entropy_coef = 1; }),
      Mentions({"entropies", "gradient", "entropy_coef of 1"}));
  EXPECT_THAT(error([&](Batch&, ActorLossOptions& o) { o.kind = PolicyLossKind::kGspo; }),
              Mentions({"GSPO", "seq-mean-token-mean"}));
  EXPECT_THAT(error([&](Batch&, ActorLossOptions& o) { o.clip_low = -0.1; }), Mentions({"-0.1 below"}));
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
