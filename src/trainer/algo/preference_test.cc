#include "trainer/algo/preference.h"

#include <gmock/gmock.h>

#include <cmath>

#include "trainer/algo/testing/gradient_check.h"
#include "trainer/algo/testing/numbers.h"

namespace tdock::algo {
namespace {

double LogSigmoid(double x) { return -std::log1p(std::exp(-x)); }

// Δ is (−10 + 12) − (−20 + 19) = 3 and (−5 + 4) − (−6 + 8) = −3.
DpoInputs TwoPairs() { return {Numbers({-10, -5}), Numbers({-20, -6}), Numbers({-12, -4}), Numbers({-19, -8})}; }

TEST(DpoLoss, IsTheLogSigmoidOfTheScaledDifference) {
  const DpoLoss loss = ComputeDpoLoss(TwoPairs(), {.beta = 0.5});
  EXPECT_TRUE(Near(loss.per_pair, {-LogSigmoid(1.5), -LogSigmoid(-1.5)}, 1e-12));
  EXPECT_TRUE(Near(loss.chosen_rewards, {1, -0.5}, 1e-12));
  EXPECT_TRUE(Near(loss.rejected_rewards, {-0.5, 1}, 1e-12));
}

TEST(DpoLoss, OfAPolicyThatIsTheReferenceIsLogTwo) {
  const at::Tensor chosen = Numbers({-3, -700}), rejected = Numbers({-2, -1});
  EXPECT_TRUE(Near(ComputeDpoLoss({chosen, rejected, chosen, rejected}).per_pair, {std::log(2), std::log(2)}, 1e-12));
}

TEST(DpoLoss, TakesLabelSmoothingAsTheChanceOfAWrongLabel) {
  const DpoOptions options{.beta = 0.5, .label_smoothing = 0.1};
  EXPECT_TRUE(Near(ComputeDpoLoss(TwoPairs(), options).per_pair,
                   {-0.9 * LogSigmoid(1.5) - 0.1 * LogSigmoid(-1.5), -0.9 * LogSigmoid(-1.5) - 0.1 * LogSigmoid(1.5)},
                   1e-12));
  const DpoOptions robust{.beta = 0.5, .label_smoothing = 0.1, .kind = DpoKind::kRobust};
  EXPECT_NEAR(ComputeDpoLoss(TwoPairs(), robust).per_pair[0].item<double>(),
              (-0.9 * LogSigmoid(1.5) + 0.1 * LogSigmoid(-1.5)) / 0.8, 1e-12);
}

TEST(DpoLoss, OfIpoIsTheSquaredDistanceFromItsTarget) {
  EXPECT_TRUE(Near(ComputeDpoLoss(TwoPairs(), {.beta = 0.25, .kind = DpoKind::kIpo}).per_pair, {1, 25}, 1e-12));
}

TEST(DpoLoss, HasTheGradientsOfItsFormula) {
  const at::Tensor ref_chosen = Normal(7, 1), ref_rejected = Normal(7, 2);
  for (const DpoOptions& options : {DpoOptions{}, DpoOptions{1.0, 0.2}, DpoOptions{1.0, 0.2, DpoKind::kRobust},
                                    DpoOptions{0.5, 0, DpoKind::kIpo}}) {
    const auto loss = [&](const std::vector<at::Tensor>& x) {
      return ComputeDpoLoss({x[0], x[1], ref_chosen, ref_rejected}, options).per_pair;
    };
    EXPECT_TRUE(GradientsMatch(loss, {Normal(7, 3), Normal(7, 4)})) << static_cast<int>(options.kind);
  }
}

TEST(DpoLoss, StaysFiniteForAnswersThatAreFarApart) {
  const at::Tensor far = Numbers({-1e5}), zero = Numbers({0});
  EXPECT_NEAR(ComputeDpoLoss({far, zero, zero, zero}).per_pair.item<double>(), 1e4, 1e-6);
  EXPECT_EQ(ComputeDpoLoss({zero, far, zero, zero}).per_pair.item<double>(), 0);
}

TEST(DpoLoss, RefusesWhatItCannotUse) {
  const auto error = [](DpoInputs inputs, const DpoOptions& options = {}) {
    return ErrorOf([&] { ComputeDpoLoss(inputs, options); });
  };
  DpoInputs inputs = TwoPairs();
  inputs.ref_rejected = Numbers({1, -kInfinity});
  EXPECT_THAT(error(inputs), Mentions({"reference log-probabilities", "rejected", "pair 1", "-inf"}));
  inputs.ref_rejected = Numbers({1});
  EXPECT_THAT(error(inputs), Mentions({"reference log-probabilities", "rejected", "[1]", "[2]"}));
  inputs.ref_rejected = at::Tensor();
  EXPECT_THAT(error(inputs), Mentions({"reference log-probabilities", "rejected", "missing"}));
  EXPECT_THAT(error(TwoPairs(), {.beta = 0}), Mentions({"beta", "not 0"}));
  EXPECT_THAT(error(TwoPairs(), {1, 0.5, DpoKind::kRobust}), Mentions({"label smoothing", "not 0.5"}));
  EXPECT_THAT(error(TwoPairs(), {1, 0.1, DpoKind::kIpo}), Mentions({"IPO", "label smoothing", "0.1"}));
}

TEST(PairMean, OfPartsAddsUp) {
  const at::Tensor losses = Numbers({1, 2, 6});
  EXPECT_NEAR((PairMean(losses.narrow(0, 0, 1), 3) + PairMean(losses.narrow(0, 1, 2), 3)).item<double>(), 3, 1e-12);
  EXPECT_THAT(ErrorOf([&] { PairMean(losses, 0); }), Mentions({"0 pairs"}));
}

TEST(BradleyTerryLoss, IsTheLogSigmoidOfTheDifferenceBeyondTheMargin) {
  const at::Tensor chosen = Numbers({2, 0}), rejected = Numbers({1, 0.5});
  EXPECT_TRUE(Near(BradleyTerryLoss(chosen, rejected), {-LogSigmoid(1), -LogSigmoid(-0.5)}, 1e-12));
  EXPECT_TRUE(Near(BradleyTerryLoss(chosen, rejected, Numbers({1, 0.5})), {-LogSigmoid(0), -LogSigmoid(-1)}, 1e-12));
  EXPECT_TRUE(Near(BradleyTerryLoss(chosen, rejected, {}, {.centre_coef = 0.1}),
                   {-LogSigmoid(1) + 0.9, -LogSigmoid(-0.5) + 0.025}, 1e-12));
  EXPECT_THAT(ErrorOf([&] { BradleyTerryLoss(chosen, rejected, Numbers({1})); }), Mentions({"margins", "[1]", "[2]"}));
  EXPECT_THAT(ErrorOf([&] {
                BradleyTerryLoss(chosen, Numbers({0, kNan}));
              }),
              Mentions({"scores", "rejected", "pair 1", "nan"}));
}

TEST(BradleyTerryLoss, HasTheGradientsOfItsFormula) {
  const at::Tensor margins = Normal(6, 3);
  const auto loss = [&](const std::vector<at::Tensor>& x) {
    return BradleyTerryLoss(x[0], x[1], margins, {.centre_coef = 0.01});
  };
  EXPECT_TRUE(GradientsMatch(loss, {Normal(6, 1), Normal(6, 2)}));
}

TEST(Scores, AreOfTheLastTokenOrTheMeanOverTheAnswer) {
  // A prompt of two tokens, masked, before each answer.
  const Tokens tokens = MakeTokens(Numbers({0, 0, 1, 1, 0, 0, 1}), std::vector<int64_t>{4, 3});
  const at::Tensor values = Numbers({9, 9, 1, 2, 9, 9, 5});
  EXPECT_TRUE(Near(LastTokenScores(values, tokens), {2, 5}, 0));
  EXPECT_TRUE(Near(MeanBySequence(values, tokens), {1.5, 5}, 0));
  EXPECT_TRUE(GradientsMatch([&](const auto& x) { return LastTokenScores(x[0].square(), tokens); }, {values}));
}

}  // namespace
}  // namespace tdock::algo
