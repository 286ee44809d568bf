#include "runtime/launch/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "core/base/testing/fails.h"

namespace tdock::runtime {
namespace {

using How = ProcessEnd::How;

RankEnd Exited(int rank, int code, std::vector<int> told = {}) {
  return {.rank = rank, .end = {.how = How::kExited, .code = code}, .told = std::move(told)};
}
RankEnd Signaled(int rank, int signal, std::vector<int> told = {}) {
  return {.rank = rank, .end = {.how = How::kSignaled, .code = signal}, .told = std::move(told)};
}
int RankOfCause(const std::vector<RankEnd>& ends) {
  const RankEnd* const cause = CauseOf(ends);
  return cause == nullptr ? -1 : cause->rank;
}

TEST(Verdict, FindsNoCauseWhereAllEndedAsTheyShould) {
  EXPECT_EQ(RankOfCause({Exited(0, 0), Exited(1, 0)}), -1);
  EXPECT_EQ(RankOfCause({Exited(0, 143, {SIGTERM}), Signaled(1, SIGTERM, {SIGTERM}), Exited(2, 0, {SIGTERM})}), -1);
  EXPECT_EQ(RankOfCause({Exited(0, 130, {SIGINT}), Signaled(1, SIGKILL, {SIGINT, SIGKILL})}), -1);
}

TEST(Verdict, BlamesTheFirstThatFails) {
  EXPECT_EQ(RankOfCause({Exited(2, 0), Exited(1, 3), Exited(0, 1, {SIGTERM})}), 1);
  EXPECT_EQ(RankOfCause({Exited(1, 3), Signaled(0, SIGTERM, {SIGTERM}), Signaled(2, SIGKILL, {SIGTERM, SIGKILL})}), 1);
  // Not told, it is a failure of its own.
  EXPECT_EQ(RankOfCause({Signaled(1, SIGTERM), Exited(0, 1)}), 1);
}

TEST(Verdict, BlamesTheOneThatWasKilledRatherThanAPeerThatNoticed) {
  EXPECT_EQ(RankOfCause({Exited(0, 1), Signaled(1, SIGKILL, {SIGTERM})}), 1);
  EXPECT_EQ(RankOfCause({Exited(0, 1), Exited(2, 1), Signaled(1, SIGSEGV, {SIGTERM})}), 1);
  EXPECT_EQ(RankOfCause({Exited(0, 1), Signaled(1, SIGABRT, {SIGTERM})}), 0) << "libraries abort when a peer is gone";
  EXPECT_EQ(RankOfCause({Signaled(0, SIGKILL), Signaled(1, SIGSEGV, {SIGTERM})}), 0);
}

TEST(Verdict, HasExitCodesAsAShell) {
  EXPECT_EQ(ExitCodeOf({.how = How::kExited, .code = 3}), 3);
  EXPECT_EQ(ExitCodeOf({.how = How::kSignaled, .code = SIGKILL}), 137);
  EXPECT_EQ(ExitCodeOf({.how = How::kNotRun, .code = ENOENT}), 127);
  EXPECT_EQ(ExitCodeOf({.how = How::kNotRun, .code = EACCES}), 126);
}

TEST(Verdict, TellsWhatHappenedToWhom) {
  RankEnd cause = Exited(1, 3);
  cause.after = absl::Milliseconds(12345);
  cause.last_lines = {"reading", "Error: no data"};
  const std::vector<RankEnd> ends = {cause,
                                     Exited(0, 1, {SIGTERM}),
                                     Exited(5, 0),
                                     Signaled(4, SIGTERM, {SIGTERM}),
                                     Exited(2, 143, {SIGTERM}),
                                     Signaled(3, SIGKILL, {SIGTERM, SIGKILL})};
  const std::string text = FailureText(ends, ends[0]);
  EXPECT_THAT(text, Mentions({"rank 1 exited", "code 3", "12.3 s", "\n    reading\n    Error: no data\n",
                              "rank 0: exited", "code 1", "ranks 2, 4: ended", "rank 3: killed"}));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("rank 5")));
  EXPECT_THAT(FailureText({&ends[3], 1}, Signaled(4, SIGSEGV)),
              Mentions({"rank 4 was killed", "signal 11 (Segmentation fault)", "0.0 s", "nothing"}));
}

}  // namespace
}  // namespace tdock::runtime
