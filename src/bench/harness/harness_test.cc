#include "bench/harness/harness.h"

#include <cmath>

#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tdock::bench {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::Optional;

// Gives the figures of a list one after another, and notes each call in a journal.
TimedRun Replay(std::vector<double> figures, std::string note, std::vector<std::string>* journal) {
  return [figures = std::move(figures), note = std::move(note), journal,
          next = size_t{0}]() mutable -> absl::StatusOr<double> {
    if (journal != nullptr) journal->push_back(note);
    return figures[next++ % figures.size()];
  };
}

Benchmark Replayed(Better better, const std::vector<double>& ours, const std::vector<double>& reference,
                   std::vector<std::string>* journal = nullptr) {
  Benchmark benchmark{.name = "group/what", .unit = "us", .better = better, .prepare = {}};
  if (!reference.empty()) benchmark.of = "memcpy";
  benchmark.prepare = [=](const Settings&) -> absl::StatusOr<Prepared> {
    if (journal != nullptr) journal->push_back("prepare");
    Prepared prepared{.run = Replay(ours, "ours", journal)};
    if (!reference.empty()) prepared.reference = Replay(reference, "reference", journal);
    return prepared;
  };
  return benchmark;
}

class HarnessTest : public ::testing::Test {
 protected:
  absl::StatusOr<Result> Measured(const Benchmark& benchmark, int runs = 5) {
    const Settings settings{.clock = clock_, .runs = runs};
    return Measure(benchmark, settings, [&](const Benchmark&, int run) { seen_.push_back(run); });
  }

  FakeClock clock_;
  std::vector<int> seen_;
};

TEST_F(HarnessTest, AlternatesWithTheReferenceAfterOneUncountedRunOfEach) {
  std::vector<std::string> journal;
  ASSERT_TRUE(Measured(Replayed(Better::kLower, {1}, {1}, &journal), 2).ok());
  EXPECT_THAT(journal, ElementsAre("prepare", "ours", "reference", "ours", "reference", "ours", "reference"));
  EXPECT_THAT(seen_, ElementsAre(0, 1, 2));
}

TEST_F(HarnessTest, LeavesTheUncountedRunOutOfTheMedian) {
  const auto result = Measured(Replayed(Better::kLower, {1000, 5, 1, 4, 2, 3}, {}));
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->runs, ElementsAre(5, 1, 4, 2, 3));
  EXPECT_EQ(result->median, 3);
  EXPECT_FALSE(result->ratio.has_value());
}

TEST_F(HarnessTest, HasARatioAboveOneWhereTheBenchmarkIsBetter) {
  const auto time = Measured(Replayed(Better::kLower, {2}, {6}));
  ASSERT_TRUE(time.ok());
  EXPECT_THAT(time->ratio, Optional(DoubleEq(3)));
  EXPECT_EQ(time->of, "memcpy");
  const auto rate = Measured(Replayed(Better::kHigher, {2}, {4}));
  ASSERT_TRUE(rate.ok());
  EXPECT_THAT(rate->ratio, Optional(DoubleEq(0.5)));
}

TEST_F(HarnessTest, ComparesNeighbouringRunsOnAMachineThatSlowsDown) {
  const auto result = Measured(Replayed(Better::kHigher, {100, 100, 100, 10, 10, 10}, {200, 200, 200, 20, 20, 20}));
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->ratio, Optional(DoubleEq(0.5)));
}

TEST_F(HarnessTest, NamesTheBenchmarkInItsErrors) {
  Benchmark failing{.name = "group/what", .unit = "us", .prepare = {}};
  failing.prepare = [](const Settings&) -> absl::StatusOr<Prepared> { return absl::InternalError("no memory"); };
  EXPECT_THAT(Measured(failing).status(), Fails(absl::StatusCode::kInternal, {"group/what", "no memory"}));

  const auto zero = Measured(Replayed(Better::kLower, {0}, {}));
  EXPECT_THAT(zero.status(), Fails(absl::StatusCode::kInternal, {"group/what", "figure 0"}));
  EXPECT_FALSE(Measured(Replayed(Better::kLower, {std::nan("")}, {})).ok());
}

TEST_F(HarnessTest, TimesWithTheClockThatItIsGiven) {
  const auto seconds = Seconds(clock_, [&] {
    clock_.Advance(absl::Milliseconds(250));
    return absl::OkStatus();
  });
  ASSERT_TRUE(seconds.ok());
  EXPECT_EQ(*seconds, 0.25);
  EXPECT_FALSE(Seconds(clock_, [] { return absl::InternalError("broke"); }).ok());
}

TEST(Median, IsTheMeanOfTheMiddleTwoOfAnEvenNumber) {
  EXPECT_EQ(Median({3, 1, 2}), 2);
  EXPECT_EQ(Median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(Median({7}), 7);
}

class SelectTest : public ::testing::Test {
 protected:
  SelectTest() {
    for (const char* name : {"dock/take32/rows=1", "dock/take32_uniform/rows=1", "dock/put16", "generate/small"}) {
      benchmarks_.push_back({.name = name, .unit = "us", .prepare = {}});
    }
  }

  std::vector<std::string> Names(const std::vector<std::string>& names, absl::string_view filter = "") {
    std::vector<std::string> found;
    const auto selected = Select(benchmarks_, names, filter);
    if (!selected.ok()) return {std::string(selected.status().message())};
    for (const Benchmark* benchmark : *selected) found.push_back(benchmark->name);
    return found;
  }

  std::vector<Benchmark> benchmarks_;
};

TEST_F(SelectTest, TakesEverythingWhereNothingIsNamed) { EXPECT_EQ(Names({}).size(), 4u); }

TEST_F(SelectTest, TakesGroupsPrefixesAndNamesInTheirOwnOrder) {
  EXPECT_THAT(Names({"generate"}), ElementsAre("generate/small"));
  EXPECT_THAT(Names({"dock/take32"}), ElementsAre("dock/take32/rows=1"));
  EXPECT_THAT(Names({"generate/", "dock/put16"}), ElementsAre("dock/put16", "generate/small"));
}

TEST_F(SelectTest, FiltersByAPartOfTheName) {
  EXPECT_THAT(Names({}, "rows=1"), ElementsAre("dock/take32/rows=1", "dock/take32_uniform/rows=1"));
  EXPECT_THAT(Names({"generate"}, "rows"), ElementsAre(Mentions({"'rows'", "--list"})));
}

TEST_F(SelectTest, NamesTheGroupsWhereOneIsUnknown) {
  EXPECT_THAT(Names({"dock", "dok"}), ElementsAre(Mentions({"'dok'", "dock, generate", "--list"})));
  EXPECT_EQ(Select(benchmarks_, std::vector<std::string>{"take32"}, "").status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tdock::bench
