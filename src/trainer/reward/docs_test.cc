// Checks what docs/rewards.md says: its configurations and its table of answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "core/base/env.h"
#include "trainer/reward/math_answer.h"
#include "trainer/reward/reward_config.h"

namespace tdock::reward {
namespace {

class RewardPage : public testing::Test {
 protected:
  RewardPage() : page_(*Env::Real().ReadFile("docs/rewards.md")) { BindReward(spec_, config_); }

  // The texts between `begin` and `end`.
  static std::vector<std::string> Between(absl::string_view text, absl::string_view begin, absl::string_view end) {
    std::vector<std::string> found;
    for (size_t at = text.find(begin); at != absl::string_view::npos; at = text.find(begin, at)) {
      at += begin.size();
      const size_t close = text.find(end, at);
      if (close == absl::string_view::npos) break;
      found.emplace_back(text.substr(at, close - at));
      at = close + end.size();
    }
    return found;
  }

  const std::string page_;
  RewardConfig config_;
  config::Spec spec_;
};

TEST_F(RewardPage, ItsConfigurationsLoad) {
  // What comes behind is of trainer/reward/external.
  const std::vector<std::string> blocks = Between(page_.substr(0, page_.find("## Other programs")), "```yaml\n", "```");
  EXPECT_EQ(blocks.size(), 2u);
  for (const std::string& block : blocks) {
    EXPECT_EQ(config::Load(spec_, block, "rewards.md", {}), absl::OkStatus());
    EXPECT_TRUE(MakeReward(config_).ok());
  }
}

TEST_F(RewardPage, ItsAnswersAreTheSameOrNotAsItSays) {
  const std::vector<std::string> table = Between(page_, "| same |", "\n\n");
  ASSERT_EQ(table.size(), 1u);
  const std::vector<std::string> rows = absl::StrSplit(table[0], '\n');
  int compared = 0;
  for (size_t row = 2; row < rows.size(); ++row) {  // behind the heads and their line
    const std::vector<std::string> cells = absl::StrSplit(rows[row], '|');
    ASSERT_EQ(cells.size(), 4u) << rows[row];
    for (const bool same : {true, false}) {
      for (const absl::string_view group : absl::StrSplit(cells[same ? 1 : 2], "; ")) {
        const std::vector<std::string> answers = Between(group, "`", "`");
        for (size_t i = 1; i < answers.size(); ++i) {
          EXPECT_EQ(SameMathAnswer(answers[0], answers[i]), same) << answers[0] << " and " << answers[i];
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 25);
}

}  // namespace
}  // namespace tdock::reward
