#include "trainer/reward/external/log_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "core/base/testing/fails.h"

namespace tdock::reward {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

TEST(LogLines, PassesLinesOnAsTheyEnd) {
  std::vector<std::string> lines;
  LogLines log("reward judge", [&](const std::string& line) { lines.push_back(line); });
  log.Add("one\ntw", absl::UnixEpoch());
  EXPECT_THAT(lines, ElementsAre("reward judge: one"));
  log.Add("o\n\n\x1b[1m\n", absl::UnixEpoch());
  EXPECT_THAT(lines, ElementsAre("reward judge: one", "reward judge: two", R"(reward judge: \x1b[1m)"));
  log.Add("last", absl::UnixEpoch());
  log.Finish();
  EXPECT_EQ(lines.back(), "reward judge: last");
  EXPECT_EQ(log.LastWords(), R"(one | two | \x1b[1m | last)");
}

TEST(LogLines, LeavesOutWhatIsTooMuchAndSaysSo) {
  std::vector<std::string> lines;
  LogLines log("reward judge", [&](const std::string& line) { lines.push_back(line); });
  for (int i = 0; i < 30; ++i) log.Add("x\n", absl::UnixEpoch());
  EXPECT_THAT(lines, SizeIs(20));
  log.Add(std::string(10000, 'y') + "\n", absl::UnixEpoch() + absl::Seconds(10));
  ASSERT_THAT(lines, SizeIs(22));
  EXPECT_THAT(lines[20], Mentions({"reward judge: ", "10 more"}));
  EXPECT_LT(lines[21].size(), 530U);
}

}  // namespace
}  // namespace tdock::reward
