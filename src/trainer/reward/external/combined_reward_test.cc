#include "trainer/reward/external/combined_reward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <new>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/testing/fails.h"

namespace tdock::reward {
namespace {

using testing::ElementsAre;

// Scores each answer by a function of the test's.
class FunctionSource final : public ScoreSource {
 public:
  using Function = std::function<absl::StatusOr<SourceScore>(size_t)>;
  FunctionSource(std::string name, Function function) : name_(std::move(name)), function_(std::move(function)) {}
  const std::string& name() const override { return name_; }
  absl::Status Score(std::span<const Answer> answers, const StopCheck&, const SourceSink& sink) override {
    for (size_t i = answers.size(); i-- > 0;) sink(i, function_(i));
    return absl::OkStatus();
  }

 private:
  const std::string name_;
  const Function function_;
};

WeightedSource Source(std::string name, double weight, FunctionSource::Function function) {
  return {.source = std::make_unique<FunctionSource>(std::move(name), std::move(function)), .weight = weight};
}

std::vector<WeightedSource> Sources(WeightedSource first) {
  std::vector<WeightedSource> sources;
  sources.push_back(std::move(first));
  return sources;
}

// Fails after what it was waiting for does.
class BrokenSource final : public ScoreSource {
 public:
  explicit BrokenSource(bool waits) : waits_(waits) {}
  const std::string& name() const override { return name_; }
  absl::Status Score(std::span<const Answer>, const StopCheck& check_stop, const SourceSink&) override {
    while (waits_) {
      if (absl::Status stop = check_stop(); !stop.ok()) return stop;
    }
    return absl::UnavailableError("the program is gone");
  }

 private:
  const bool waits_;
  const std::string name_ = "broken";
};

const Answer kAnswers[] = {{.prompt = "a", .response = "1", .finished = true, .truth = "1"},
                           {.prompt = "b", .response = "2", .finished = true, .truth = "3"}};

TEST(CombinedReward, IsTheWeightedSumOfRulesAndSources) {
  std::vector<WeightedSource> sources;
  sources.push_back(Source("judge", 2.0, [](size_t i) {
    return SourceScore{.score = static_cast<float>(i), .parts = {{"form", 0.5F}}, .seconds = 3};
  }));
  sources.push_back(Source("rare", 5.0, [](size_t i) -> SourceScore {
    if (i == 0) return {.score = std::nullopt};
    return {.score = 0.25F};
  }));
  const auto reward = MakeCombinedReward(std::make_unique<ExactMatch>(), std::move(sources), {});
  const Scores scores = *reward->Score(kAnswers);
  EXPECT_THAT(scores.totals, ElementsAre(1.0F, 2.0F + 1.25F));
  ASSERT_EQ(scores.parts.size(), 4u);
  EXPECT_EQ(scores.parts[0].rule, "exact");
  EXPECT_EQ(scores.parts[1].rule, "judge");
  EXPECT_EQ(scores.parts[2].rule, "judge/form");
  EXPECT_THAT(scores.parts[2].scores, ElementsAre(0.5F, 0.5F));
  EXPECT_EQ(scores.parts[3].rule, "rare");
  EXPECT_TRUE(std::isnan(scores.parts[3].scores[0]));
}

TEST(CombinedReward, AnErrorOfASampleNamesSourceAndSampleAndCanStandAsAScore) {
  const auto function = [](size_t i) -> absl::StatusOr<SourceScore> {
    if (i == 1) return absl::UnknownError("try 1: no unit");
    return SourceScore{.score = 1};
  };
  const auto stops = MakeCombinedReward(nullptr, Sources(Source("judge", 2.0, function)), {});
  EXPECT_THAT(
      stops->Score(kAnswers).status(),
      Fails(absl::StatusCode::kUnknown, {"reward judge", "sample 1", "\"b\"", "reward.on_error", "try 1: no unit"}));
  const auto scores =
      MakeCombinedReward(nullptr, Sources(Source("judge", 2.0, function)), {.on_error = OnError::kScore, .score = -1});
  EXPECT_THAT(scores->Score(kAnswers)->totals, ElementsAre(2.0F, -2.0F));
  int failed = 0;
  EXPECT_EQ(scores->ScoreEach(
                kAnswers, [] { return absl::OkStatus(); },
                [&](size_t, absl::StatusOr<AnswerScore> score) { failed += score->parts[0].failed; }),
            absl::OkStatus());
  EXPECT_EQ(failed, 1);
}

TEST(CombinedReward, ASampleWithoutAScoreCanBeLeftOut) {
  const auto fails_at = [](size_t at) {
    return [at](size_t i) -> absl::StatusOr<SourceScore> {
      if (i == at) return absl::UnknownError("no unit");
      return SourceScore{.score = 1, .message = "fine"};
    };
  };
  std::vector<std::string> told;
  Mutex mu;
  const ErrorPolicy drop{.on_error = OnError::kDrop, .log = [&](const std::string& line) {
                           MutexLock lock(mu);
                           told.push_back(line);
                         }};
  std::vector<WeightedSource> sources = Sources(Source("judge", 2.0, fails_at(1)));
  sources.push_back(Source("form", 1.0, fails_at(2)));
  const Scores scores = *MakeCombinedReward(nullptr, std::move(sources), drop)->Score(kAnswers);
  EXPECT_EQ(scores.totals[0], 3.0F);
  EXPECT_TRUE(std::isnan(scores.totals[1]));
  EXPECT_THAT(scores.messages, ElementsAre("judge: fine; form: fine", "judge: no unit; form: fine"));
  EXPECT_THAT(told, ElementsAre(Mentions({"reward judge", "sample 1", "\"b\"", "no unit"})));

  // Not more than anybody reads.
  told.clear();
  const std::vector<Answer> many(25, kAnswers[0]);
  const auto all_fail = [](size_t) -> absl::StatusOr<SourceScore> { return absl::UnknownError("gone"); };
  const auto reward = MakeCombinedReward(nullptr, Sources(Source("judge", 2.0, all_fail)), drop);
  EXPECT_TRUE(std::isnan(reward->Score(many)->totals[24]));
  ASSERT_EQ(told.size(), 11u);
  EXPECT_THAT(told.back(), Mentions({"reward: ", "15 more"}));
}

TEST(CombinedReward, AnExceptionStopsTheOtherSources) {
  std::vector<WeightedSource> sources =
      Sources(Source("judge", 1, [](size_t) -> SourceScore { throw std::bad_alloc(); }));
  sources.push_back({.source = std::make_unique<BrokenSource>(/*waits=*/true)});
  const auto reward = MakeCombinedReward(nullptr, std::move(sources), {});
  EXPECT_THROW((void)reward->Score(kAnswers), std::bad_alloc);
}

TEST(CombinedReward, ASourceThatFailsStopsTheOthers) {
  std::vector<WeightedSource> sources;
  sources.push_back({.source = std::make_unique<BrokenSource>(/*waits=*/true)});
  sources.push_back({.source = std::make_unique<BrokenSource>(/*waits=*/false)});
  const auto reward =
      MakeCombinedReward(std::make_unique<ExactMatch>(), std::move(sources), {.on_error = OnError::kScore});
  EXPECT_EQ(reward->Score(kAnswers).status(), absl::UnavailableError("the program is gone"));
}

TEST(CombinedReward, ASumThatIsNotFiniteNamesTheSample) {
  const auto reward =
      MakeCombinedReward(nullptr, Sources(Source("judge", 1e300, [](size_t) { return SourceScore{.score = 1}; })), {});
  EXPECT_THAT(reward->Score(kAnswers).status(), Fails(absl::StatusCode::kInternal, {"inf for sample 0"}));
}

}  // namespace
}  // namespace tdock::reward
