#include "tdock/plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "absl/numeric/int128.h"
#include "core/base/rng.h"
#include "core/base/testing/fails.h"

namespace tdock {
namespace {

std::vector<int64_t> RandomLengths(Rng& rng, size_t count, uint64_t below) {
  std::vector<int64_t> lengths(count);
  for (int64_t& length : lengths) length = static_cast<int64_t>(rng.Below(below));
  return lengths;
}

void ExpectEachOnce(const Plan& plan, size_t count) {
  std::vector<int64_t> all;
  for (const auto& set : plan) all.insert(all.end(), set.begin(), set.end());
  std::sort(all.begin(), all.end());
  ASSERT_EQ(all.size(), count);
  for (size_t i = 0; i < count; ++i) EXPECT_EQ(all[i], static_cast<int64_t>(i));
}

int64_t Tokens(std::span<const int64_t> lengths, const std::vector<int64_t>& set) {
  int64_t tokens = 0;
  for (int64_t position : set) tokens += lengths[static_cast<size_t>(position)];
  return tokens;
}

absl::int128 Work(std::span<const int64_t> lengths, const std::vector<int64_t>& set) {
  absl::int128 work = 0;
  for (int64_t position : set) {
    const absl::int128 length = lengths[static_cast<size_t>(position)];
    work += 24576 * length + length * length;
  }
  return work;
}

TEST(BalanceRanks, SharesOutWorkInTheOrderOfTheField) {
  const std::vector<int64_t> lengths = {100, 900, 200, 800, 300, 700, 400, 600};
  EXPECT_EQ(*BalanceRanks(lengths, 2), (Plan{{0, 5, 3, 6}, {2, 7, 1, 4}}));
  EXPECT_EQ(*BalanceRanks(lengths, 1), (Plan{{0, 4, 7, 3, 1, 5, 6, 2}}));
  EXPECT_EQ(*BalanceRanks(lengths, 8), (Plan{{1}, {3}, {5}, {7}, {6}, {4}, {2}, {0}}));
}

TEST(BalanceRanks, GivesEveryRankAsManySamplesAndTheFirstTheMostWork) {
  Rng rng(1);
  for (int64_t ranks : {1, 2, 3, 8}) {
    for (int64_t size : {0, 1, 4, 32}) {
      const std::vector<int64_t> lengths = RandomLengths(rng, static_cast<size_t>(ranks * size), 3000);
      const Plan plan = *BalanceRanks(lengths, ranks);
      ASSERT_EQ(plan.size(), static_cast<size_t>(ranks));
      ExpectEachOnce(plan, lengths.size());
      for (const auto& set : plan) {
        EXPECT_EQ(set.size(), static_cast<size_t>(size));
        EXPECT_LE(Work(lengths, set), Work(lengths, plan.front()));
      }
    }
  }
}

TEST(BalanceRanks, ComesNearToTheBestSharingOut) {
  Rng rng(2);
  for (int round = 0; round < 200; ++round) {
    const std::vector<int64_t> lengths = RandomLengths(rng, 10, 4096);
    absl::int128 best = absl::Int128Max();
    for (uint32_t chosen = 0; chosen < 1024; ++chosen) {
      if (std::popcount(chosen) != 5) continue;
      std::vector<int64_t> sets[2];
      for (size_t i = 0; i < 10; ++i) sets[chosen >> i & 1].push_back(static_cast<int64_t>(i));
      best = std::min(best, std::max(Work(lengths, sets[0]), Work(lengths, sets[1])));
    }
    const absl::int128 heaviest = Work(lengths, BalanceRanks(lengths, 2)->front());
    EXPECT_GE(heaviest, best);
    EXPECT_LE(heaviest * 6, best * 7);
  }
}

TEST(BalanceRanks, IsExactForTheLongestSequences) {
  std::vector<int64_t> lengths(64, kMaxLength);
  lengths[7] = kMaxLength - 1;
  const Plan plan = *BalanceRanks(lengths, 4);
  ExpectEachOnce(plan, 64);
  // Only the last rank has less.
  EXPECT_THAT(plan.back(), testing::Contains(7));
  // 64 bits would take the work of 2^32 tokens for that of none.
  EXPECT_EQ(*BalanceRanks(std::vector<int64_t>{1, int64_t{1} << 32, 2, 1 << 20}, 2), (Plan{{0, 1}, {2, 3}}));
}

TEST(BalanceRanks, SaysWhatDoesNotFit) {
  EXPECT_THAT(BalanceRanks(std::vector<int64_t>{1, 2, 3}, 2).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"3 samples", "2 sets", "multiple of 2"}));
  EXPECT_THAT(BalanceRanks(std::vector<int64_t>{1, -2}, 2).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"sample 1", "-2 tokens", "from 0 to 2^40"}));
  EXPECT_FALSE(BalanceRanks(std::vector<int64_t>{1, kMaxLength + 1}, 2).ok());
  EXPECT_FALSE(BalanceRanks({}, 0).ok());
  EXPECT_FALSE(BalanceRanks({}, -1).ok());
  EXPECT_THAT(
      BalanceRanks({}, int64_t{1} << 60).status(),
      Fails(absl::StatusCode::kInvalidArgument, {"data-parallel ranks", "1152921504606846976", "at most 1048576"}));
}

// The plain form of what PackMicroBatches does: the number of its bins.
size_t FirstFitDecreasing(std::vector<int64_t> lengths, int64_t max_tokens) {
  std::sort(lengths.rbegin(), lengths.rend());
  std::vector<int64_t> bins;
  for (int64_t length : lengths) {
    const auto bin = std::find_if(bins.begin(), bins.end(), [&](int64_t used) { return length <= max_tokens - used; });
    if (bin != bins.end()) {
      *bin += length;
    } else {
      bins.push_back(length);
    }
  }
  return bins.size();
}

// The least number of bins, by trying for every subset which of its items is the last in its last bin.
size_t FewestBins(std::span<const int64_t> lengths, int64_t max_tokens) {
  using Used = std::pair<size_t, int64_t>;  // full bins, tokens in the one that is being filled
  std::vector<Used> best(size_t{1} << lengths.size(), Used(lengths.size() + 1, 0));
  best[0] = {0, max_tokens};
  for (size_t subset = 0; subset + 1 < best.size(); ++subset) {
    for (size_t i = 0; i < lengths.size(); ++i) {
      if (subset >> i & 1) continue;
      Used used = best[subset];
      if (lengths[i] <= max_tokens - used.second) {
        used.second += lengths[i];
      } else {
        used = {used.first + 1, lengths[i]};
      }
      Used& with = best[subset | size_t{1} << i];
      with = std::min(with, used);
    }
  }
  return best.back().first;
}

TEST(PackMicroBatches, KeepsTheCap) {
  // Sharing out by ceil(3000 / 1600) = 2 would make one of 2000.
  EXPECT_EQ(*PackMicroBatches(std::vector<int64_t>{1000, 1000, 1000}, {.max_tokens = 1600}), (Plan{{0}, {1}, {2}}));
  EXPECT_EQ(*PackMicroBatches(std::vector<int64_t>{500, 1000, 600, 900}, {.max_tokens = 1600}), (Plan{{0, 3}, {1, 2}}));
  EXPECT_EQ(*PackMicroBatches({}, {.max_tokens = 1}), Plan());
  EXPECT_EQ(*PackMicroBatches(std::vector<int64_t>{0, 0}, {.max_tokens = 1}), (Plan{{0, 1}}));
}

TEST(PackMicroBatches, NeedsNoMoreThanFirstFitDecreasing) {
  Rng rng(3);
  for (int round = 0; round < 300; ++round) {
    const int64_t cap = 1 + static_cast<int64_t>(rng.Below(4000));
    const std::vector<int64_t> lengths = RandomLengths(rng, rng.Below(200), static_cast<uint64_t>(cap) + 1);
    const Plan plan = *PackMicroBatches(lengths, {.max_tokens = cap});
    ExpectEachOnce(plan, lengths.size());
    EXPECT_LE(plan.size(), FirstFitDecreasing(lengths, cap));
    for (const auto& set : plan) EXPECT_LE(Tokens(lengths, set), cap);
    EXPECT_TRUE(std::is_sorted(plan.begin(), plan.end()));
    EXPECT_EQ(plan, *PackMicroBatches(lengths, {.max_tokens = cap}));
  }
}

TEST(PackMicroBatches, ComesNearToTheFewest) {
  Rng rng(4);
  for (int round = 0; round < 200; ++round) {
    const std::vector<int64_t> lengths = RandomLengths(rng, 1 + rng.Below(9), 101);
    const size_t fewest = std::max(FewestBins(lengths, 100), size_t{1});  // samples without tokens need one, too
    const size_t count = PackMicroBatches(lengths, {.max_tokens = 100})->size();
    EXPECT_GE(count, fewest);
    EXPECT_LE(9 * count, 11 * fewest + 6);
  }
}

TEST(PackMicroBatches, MakesAsManyAsOtherRanksDo) {
  EXPECT_EQ(*PackMicroBatches(std::vector<int64_t>{4, 3, 2, 1}, {.max_tokens = 10, .min_count = 2}),
            (Plan{{0, 3}, {1, 2}}));
  EXPECT_EQ(*PackMicroBatches(std::vector<int64_t>{4, 3, 2, 1}, {.max_tokens = 10, .min_count = 4}),
            (Plan{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(*PackMicroBatches(std::vector<int64_t>{0, 0}, {.max_tokens = 10, .min_count = 2}), (Plan{{0}, {1}}));
  EXPECT_THAT(PackMicroBatches(std::vector<int64_t>{1, 1}, {.max_tokens = 10, .min_count = 3}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"2 samples", "3 micro-batches", "min_count"}));
  Rng rng(5);
  for (int round = 0; round < 200; ++round) {
    const std::vector<int64_t> lengths = RandomLengths(rng, 1 + rng.Below(30), 101);
    const size_t fewest = PackMicroBatches(lengths, {.max_tokens = 100})->size();
    const size_t count = 1 + rng.Below(lengths.size());
    const Plan plan = *PackMicroBatches(lengths, {.max_tokens = 100, .min_count = static_cast<int64_t>(count)});
    EXPECT_EQ(plan.size(), std::max(fewest, count));
    ExpectEachOnce(plan, lengths.size());
    for (const auto& set : plan) {
      EXPECT_FALSE(set.empty());
      EXPECT_LE(Tokens(lengths, set), 100);
    }
  }
}

TEST(PackMicroBatches, NamesTheSampleThatDoesNotFit) {
  EXPECT_THAT(PackMicroBatches(std::vector<int64_t>{5, 1700}, {.max_tokens = 1600}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"sample 1", "1700 tokens", "at most 1600", "max_tokens"}));
  EXPECT_THAT(PackMicroBatches(std::vector<int64_t>{5, -1}, {.max_tokens = 1600}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"sample 1", "-1 tokens", "from 0 to 2^40"}));
  EXPECT_THAT(PackMicroBatches({}, {}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"max_tokens is 0", "positive"}));
}

TEST(PackMicroBatches, IsExactForTheLongestSequences) {
  const std::vector<int64_t> lengths(100, kMaxLength);
  EXPECT_EQ(PackMicroBatches(lengths, {.max_tokens = kMaxLength})->size(), 100u);
  EXPECT_THAT(PackMicroBatches(lengths, {.max_tokens = INT64_MAX})->size(), 1u);
}

}  // namespace
}  // namespace tdock
