#include "trainer/reward/reward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/growth.h"

namespace tdock::reward {
namespace {

using testing::ElementsAre;

class FixedReward final : public Reward {
 public:
  explicit FixedReward(absl::StatusOr<Scores> scores) : scores_(std::move(scores)) {}
  explicit FixedReward(std::vector<float> totals) : scores_(Scores{.totals = std::move(totals), .parts = {}}) {}
  absl::StatusOr<Scores> Score(std::span<const Answer>) override { return scores_; }

 private:
  const absl::StatusOr<Scores> scores_;
};

const Answer kAnswers[] = {{.prompt = "37+85=", .response = "221", .finished = true, .truth = "221"},
                           {.prompt = "00+00=", .response = "0", .finished = false, .truth = "0"},
                           {.prompt = "10+01=", .response = "1", .finished = true, .truth = "11"}};

TEST(ExactMatch, WantsTheWholeTrueAnswerAndItsEnd) {
  ExactMatch reward;
  EXPECT_THAT(CheckedScore(reward, kAnswers)->totals, ElementsAre(1, 0, 0));
  const Answer longer[] = {{.prompt = "", .response = "221 ", .finished = true, .truth = "221"},
                           {.prompt = "", .response = "", .finished = true, .truth = ""}};
  EXPECT_THAT(CheckedScore(reward, longer)->totals, ElementsAre(0, 1));
  EXPECT_THAT(CheckedScore(reward, {})->totals, ElementsAre());
}

TEST(CheckedScore, PassesFiniteScoresOn) {
  FixedReward reward(std::vector<float>{-1.5F, 0.0F, 1e30F});
  EXPECT_THAT(CheckedScore(reward, kAnswers)->totals, ElementsAre(-1.5F, 0.0F, 1e30F));
}

TEST(CheckedScore, NamesTheSampleWhoseScoreIsNotFinite) {
  FixedReward nan(std::vector<float>{0.0F, std::numeric_limits<float>::quiet_NaN(), 0.0F});
  EXPECT_THAT(CheckedScore(nan, kAnswers).status(),
              Fails(absl::StatusCode::kInternal, {"nan", "sample 1", "\"00+00=\""}));
  FixedReward infinite(std::vector<float>{0.0F, 0.0F, -std::numeric_limits<float>::infinity()});
  EXPECT_THAT(CheckedScore(infinite, kAnswers).status(), Fails(absl::StatusCode::kInternal, {"-inf", "sample 2"}));
}

TEST(CheckedScore, RefusesAWrongCount) {
  FixedReward reward(std::vector<float>{0.0F, 1.0F});
  EXPECT_THAT(CheckedScore(reward, kAnswers).status(), Fails(absl::StatusCode::kInternal, {"2 scores", "3 answers"}));
  FixedReward part(Scores{.totals = {0, 0, 0}, .parts = {{.rule = "math", .scores = {0}}}});
  EXPECT_THAT(CheckedScore(part, kAnswers).status(),
              Fails(absl::StatusCode::kInternal, {"rule math", "1 scores", "3 answers"}));
}

TEST(CheckedScore, PassesTheRewardsOwnErrorOn) {
  FixedReward reward(absl::UnavailableError("the scorer is away"));
  EXPECT_EQ(CheckedScore(reward, kAnswers).status(), absl::UnavailableError("the scorer is away"));
}

TEST(Gathered, CostsWhatItsPartsCost) {
  ExpectLinear(
      [](int64_t parts) {
        std::vector<AnswerScore> each(4);
        for (AnswerScore& score : each) {
          for (int64_t i = 0; i < parts; ++i) score.parts.push_back({.name = absl::StrCat("part ", i), .score = 1.0F});
        }
        ASSERT_EQ(Gathered(each).parts.size(), static_cast<size_t>(parts));
      },
      2'000);
}

}  // namespace
}  // namespace tdock::reward
