#include "trainer/reward/reward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

namespace tdock::reward {
namespace {

using testing::ElementsAre;

class FixedReward final : public Reward {
 public:
  explicit FixedReward(absl::StatusOr<std::vector<float>> scores) : scores_(std::move(scores)) {}
  absl::StatusOr<std::vector<float>> Score(std::span<const Answer>) override { return scores_; }

 private:
  const absl::StatusOr<std::vector<float>> scores_;
};

const Answer kAnswers[] = {{.prompt = "37+85=", .response = "221", .finished = true, .truth = "221"},
                           {.prompt = "00+00=", .response = "0", .finished = false, .truth = "0"},
                           {.prompt = "10+01=", .response = "1", .finished = true, .truth = "11"}};

TEST(ExactMatch, WantsTheWholeTrueAnswerAndItsEnd) {
  ExactMatch reward;
  EXPECT_THAT(CheckedScore(reward, kAnswers).value(), ElementsAre(1, 0, 0));
  const Answer longer[] = {{.prompt = "", .response = "221 ", .finished = true, .truth = "221"},
                           {.prompt = "", .response = "", .finished = true, .truth = ""}};
  EXPECT_THAT(CheckedScore(reward, longer).value(), ElementsAre(0, 1));
  EXPECT_THAT(CheckedScore(reward, {}).value(), ElementsAre());
}

TEST(CheckedScore, PassesFiniteScoresOn) {
  FixedReward reward({{-1.5F, 0.0F, 1e30F}});
  EXPECT_THAT(CheckedScore(reward, kAnswers).value(), ElementsAre(-1.5F, 0.0F, 1e30F));
}

TEST(CheckedScore, NamesTheSampleWhoseScoreIsNotFinite) {
  FixedReward nan({{0.0F, std::numeric_limits<float>::quiet_NaN(), 0.0F}});
  EXPECT_EQ(
      CheckedScore(nan, kAnswers).status(),
      absl::InternalError("the reward gave nan for sample 1, prompt \"00+00=\"; a reward must be a finite number"));
  FixedReward infinite({{0.0F, 0.0F, -std::numeric_limits<float>::infinity()}});
  EXPECT_THAT(CheckedScore(infinite, kAnswers).status().message(), testing::HasSubstr("-inf for sample 2"));
}

TEST(CheckedScore, RefusesAWrongCount) {
  FixedReward reward({{0.0F, 1.0F}});
  EXPECT_EQ(CheckedScore(reward, kAnswers).status(), absl::InternalError("the reward gave 2 scores for 3 answers"));
}

TEST(CheckedScore, PassesTheRewardsOwnErrorOn) {
  FixedReward reward(absl::UnavailableError("the scorer is away"));
  EXPECT_EQ(CheckedScore(reward, kAnswers).status(), absl::UnavailableError("the scorer is away"));
}

}  // namespace
}  // namespace tdock::reward
