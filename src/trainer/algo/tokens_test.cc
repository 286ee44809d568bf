#include "trainer/algo/tokens.h"

#include <gmock/gmock.h>

#include "trainer/algo/testing/gradient_check.h"
#include "trainer/algo/testing/numbers.h"

namespace tdock::algo {
namespace {

TEST(Tokens, AreSummedAndAveragedBySequenceWhateverMaskedOnesHold) {
  const Tokens tokens = MakeTokens(Numbers({1, 0, 1, 1, 0}), std::vector<int64_t>{3, 0, 1, 1});
  const at::Tensor values = Numbers({1, kNan, 3, 7, kInfinity});
  EXPECT_TRUE(Near(SumBySequence(values, tokens), {4, 0, 7, 0}, 0));
  EXPECT_TRUE(Near(MeanBySequence(values, tokens), {2, 0, 7, 0}, 0));
  EXPECT_TRUE(Near(CountBySequence(tokens), {2, 0, 1, 0}, 0));
  EXPECT_TRUE(Near(Spread(Numbers({5, 6, 7, 8}), tokens), {5, 5, 5, 7, 8}, 0));
}

TEST(Tokens, OfLongSequencesKeepTheirDigitsInSumsAndMeans) {
  constexpr int64_t kLength = 16'384;
  const at::Tensor values = -Normal(kLength, 1).abs() - 1;
  const at::Tensor floats = values.to(at::kFloat);
  const Tokens tokens = All({kLength});
  const double sum = floats.to(at::kDouble).sum().item<double>();
  EXPECT_EQ(SumBySequence(floats, tokens).item<float>(), static_cast<float>(sum));
  EXPECT_EQ(MeanBySequence(floats, tokens).item<float>(), static_cast<float>(sum / kLength));
  EXPECT_EQ(SumBySequence(floats, tokens).scalar_type(), at::kFloat);
  // bfloat16 holds no odd number above 256.
  EXPECT_EQ(MeanBySequence(at::ones({kLength}, at::kBFloat16), tokens).item<double>(), 1);
}

TEST(Tokens, HaveTheGradientsOfTheirSumsAndMeans) {
  const Tokens tokens = MakeTokens(Numbers({1, 0, 1, 1, 0, 1}), std::vector<int64_t>{3, 3});
  EXPECT_TRUE(GradientsMatch([&](const auto& x) { return SumBySequence(x[0].square(), tokens); }, {Normal(6, 1)}));
  EXPECT_TRUE(GradientsMatch([&](const auto& x) { return MeanBySequence(x[0].square(), tokens); }, {Normal(6, 2)}));
  EXPECT_TRUE(GradientsMatch([&](const auto& x) { return Spread(x[0].square(), tokens); }, {Normal(2, 3)}));
}

TEST(Tokens, ThatDoNotFitAreRefusedByName) {
  EXPECT_THAT(ErrorOf([] { MakeTokens(at::ones({3}), std::vector<int64_t>{2, 2}); }), Mentions({"[3]", "4 tokens"}));
  EXPECT_THAT(ErrorOf([] { MakeTokens(at::ones({1}), std::vector<int64_t>{2, -1}); }), Mentions({"sequence 1", "-1"}));
  EXPECT_THAT(ErrorOf([] { CheckTokens("old values", at::ones({2}), All({3})); }),
              Mentions({"old values", "[2]", "[3]"}));
  EXPECT_THAT(ErrorOf([] { CheckTokens("old values", {}, All({3})); }), Mentions({"old values", "missing"}));
  EXPECT_THAT(ErrorOf([] { SumBySequence(at::ones({2}), {.mask = at::ones({2})}); }), Mentions({"Tokens::sequence"}));
}

TEST(Tokens, ThatAreInfiniteAreNamedWithTheirSample) {
  const Tokens tokens = MakeTokens(Numbers({0, 1, 1, 1, 1}), std::vector<int64_t>{2, 3});
  EXPECT_EQ(ErrorOf([&] { CheckTokens("old values", Numbers({kNan, 1, 2, 3, 4}), tokens); }), "");
  EXPECT_THAT(ErrorOf([&] {
                CheckTokens("old values", Numbers({kNan, 1, 2, -kInfinity, 4}), tokens);
              }),
              Mentions({"old values", "token 1", "sample 1", "-inf"}));
  EXPECT_THAT(ErrorOf([&] {
                CheckTokens("old values", Numbers({0, kNan}), {.mask = at::ones({2})});
              }),
              Mentions({"old values", "token 1", "nan"}));
}

TEST(LastCounted, IsThePlaceOfTheLastTokenThatCounts) {
  EXPECT_TRUE(at::equal(LastCounted(MakeTokens(Numbers({1, 1, 0, 1, 0, 1}), std::vector<int64_t>{3, 1, 2})),
                        Integers({1, 3, 5})));
  EXPECT_THAT(ErrorOf([] {
                LastCounted(MakeTokens(Numbers({1, 0}), std::vector<int64_t>{1, 1}));
              }),
              Mentions({"no token", "sample 1"}));
}

TEST(Whiten, GivesMeanZeroAndUnbiasedVarianceOne) {
  const at::Tensor white = Whiten(Numbers({1, 2, kNan, 3, 4}), {.mask = Numbers({1, 1, 0, 1, 1})});
  const double deviation = std::sqrt(5.0 / 3.0);
  EXPECT_TRUE(Near(white, {-1.5 / deviation, -0.5 / deviation, 0, 0.5 / deviation, 1.5 / deviation}, 1e-8));
}

TEST(Whiten, OfEqualNumbersOrOneOrNoneIsZero) {
  EXPECT_TRUE(Near(Whiten(Numbers({0.1, 0.1, 0.1}), All({3})), {0, 0, 0}, 0));
  EXPECT_TRUE(Near(Whiten(Numbers({7}), All({1})), {0}, 0));
  EXPECT_TRUE(Near(Whiten(Numbers({7}), {.mask = Numbers({0})}), {0}, 0));
}

}  // namespace
}  // namespace tdock::algo
