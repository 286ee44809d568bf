#include "trainer/algo/covariance.h"

#include <gmock/gmock.h>

#include <set>

#include "trainer/algo/testing/numbers.h"

namespace tdock::algo {
namespace {

// Means are 0 and −2 over the tokens that count; the covariances are 4, 0, –, 6, −1, 0.
const at::Tensor& CovAdvantages() {
  static const at::Tensor advantages = Numbers({-2, 0, kNan, 3, -1, 0});
  return advantages;
}
const at::Tensor& CovLogProbs() {
  static const at::Tensor log_probs = Numbers({-4, -3, kInfinity, 0, -1, -2});
  return log_probs;
}
Tokens CovTokens() { return {.mask = Numbers({1, 1, 0, 1, 1, 1})}; }

std::vector<int64_t> Places(const at::Tensor& selected) {
  std::vector<int64_t> places;
  for (int64_t i = 0; i < selected.numel(); ++i) {
    if (selected[i].item<bool>()) places.push_back(i);
  }
  return places;
}

TEST(LargestCovariance, SelectsAFractionOfTheTokensThatCountButAtLeastOne) {
  const auto places = [](double fraction) {
    return Places(LargestCovariance(CovLogProbs(), CovAdvantages(), CovTokens(), fraction));
  };
  EXPECT_EQ(places(0.0002), (std::vector<int64_t>{3}));
  EXPECT_EQ(places(0.4), (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(places(1), (std::vector<int64_t>{0, 1, 3, 4, 5}));
  EXPECT_THAT(ErrorOf([&] { places(0); }), Mentions({"fraction", "not 0"}));
}

TEST(RandomCovariance, SelectsOnlyTokensOfTheRangeAsTheSeedSays) {
  const auto places = [](uint64_t seed, const CovarianceRange& range) {
    return Places(RandomCovariance(CovLogProbs(), CovAdvantages(), CovTokens(), seed, range));
  };
  EXPECT_EQ(places(1, {.low = 1, .high = 5}), (std::vector<int64_t>{0}));
  EXPECT_EQ(places(1, {.low = 1, .high = 7, .fraction = 1}), (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(places(1, {.low = 50, .high = 60, .fraction = 1}), (std::vector<int64_t>{}));
  const CovarianceRange wide{.low = -2, .high = 7};
  std::set<std::vector<int64_t>> seen;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    seen.insert(places(seed, wide));
    EXPECT_EQ(places(seed, wide), places(seed, wide));
  }
  EXPECT_GT(seen.size(), 1U);
}

TEST(Covariance, OfNoTokenSelectsNone) {
  const Tokens none{.mask = at::zeros({6})};
  EXPECT_TRUE(Places(LargestCovariance(CovLogProbs(), CovAdvantages(), none)).empty());
  EXPECT_TRUE(Places(RandomCovariance(CovLogProbs(), CovAdvantages(), none, 1)).empty());
}

}  // namespace
}  // namespace tdock::algo
