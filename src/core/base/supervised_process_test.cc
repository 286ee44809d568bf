#include "core/base/supervised_process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "core/base/testing/sanitized.h"

namespace tdock {
namespace {

using How = ProcessEnd::How;

absl::Time Patience() { return absl::Now() + kPatience; }

MATCHER_P2(Ended, how, code, "") {
  *result_listener << arg.ToString();
  return arg.how == how && arg.code == code;
}

std::unique_ptr<SupervisedProcess> StartShell(const std::string& script, const ProcessLimits& limits = {}) {
  auto process = SupervisedProcess::Start({.arguments = {"sh", "-c", script}, .limits = limits});
  EXPECT_TRUE(process.ok()) << process.status();
  return *std::move(process);
}

struct Said {
  std::string out, err;
};
// All that it says until its outputs are closed, with this input.
Said Talk(SupervisedProcess& process, absl::string_view input = "") {
  Said said;
  for (;;) {
    absl::StatusOr<SupervisedProcess::Moved> moved = process.Move(input, Patience());
    if (!moved.ok()) {
      EXPECT_TRUE(absl::IsOutOfRange(moved.status())) << moved.status();
      return said;
    }
    input.remove_prefix(moved->written);
    if (input.empty()) process.CloseInput();
    said.out += moved->out;
    said.err += moved->err;
  }
}

// The first number that it writes.
pid_t ReadPid(SupervisedProcess& process) {
  std::string text;
  while (text.find('\n') == std::string::npos) {
    absl::StatusOr<SupervisedProcess::Moved> moved = process.Move("", Patience());
    if (!moved.ok()) break;
    text += moved->out;
  }
  int pid = 0;
  EXPECT_TRUE(absl::SimpleAtoi(text, &pid)) << text;
  return pid;
}

// Whether it runs; zombies do not.
bool IsAlive(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  if (!std::getline(file, line)) return false;
  return line[line.rfind(')') + 2] != 'Z';
}

bool Disappears(pid_t pid) {
  return Eventually([pid] { return !IsAlive(pid); });
}

TEST(ProcessEnd, ReadsAsTheCodeSignalOrReason) {
  EXPECT_THAT((ProcessEnd{.how = How::kExited, .code = 3}.ToString()), Mentions({"exited", "3"}));
  EXPECT_THAT((ProcessEnd{.how = How::kSignaled, .code = SIGKILL}.ToString()), Mentions({"signal 9", "Killed"}));
  EXPECT_THAT((ProcessEnd{.how = How::kTooMuchMemory, .memory_bytes = 7 << 20}.ToString()), Mentions({"7 MiB"}));
  EXPECT_THAT((ProcessEnd{.how = How::kNotRun, .code = ENOENT}.ToString()), Mentions({strerror(ENOENT)}));
}

TEST(SupervisedProcess, ConnectsTheStandardStreams) {
  const auto process = StartShell("while read line; do echo \"got $line\"; echo bad >&2; done; exit 3");
  const Said said = Talk(*process, "a\nb\n");
  EXPECT_EQ(said.out, "got a\ngot b\n");
  EXPECT_EQ(said.err, "bad\nbad\n");
  EXPECT_THAT(*process->Wait(Patience()), Ended(How::kExited, 3));
}

TEST(SupervisedProcess, MovesMoreThanPipesHoldInBothDirections) {
  const auto process = StartShell("cat");
  const std::string sent(3 << 20, 'x');
  EXPECT_TRUE(Talk(*process, sent).out == sent);
}

TEST(SupervisedProcess, SaysWhatIsWrongWithAProgram) {
  EXPECT_THAT(SupervisedProcess::Start({.arguments = {"no-such-program"}}).status(),
              Fails(absl::StatusCode::kNotFound, {"no-such-program", "PATH"}));
  EXPECT_THAT(SupervisedProcess::Start({.arguments = {"/etc/passwd"}}).status(),
              Fails(absl::StatusCode::kPermissionDenied, {"/etc/passwd"}));
  const auto process = SupervisedProcess::Start({.arguments = {"true"}, .folder = "/no/such/folder"});
  ASSERT_TRUE(process.ok());
  EXPECT_THAT(*(*process)->Wait(Patience()), Ended(How::kNotRun, ENOENT));
}

TEST(SupervisedProcess, HasItsOwnEnvironmentFolderAndDescriptorsAndNoOther) {
  std::array<int, 2> ends;
  ASSERT_EQ(pipe(ends.data()), 0);  // deliberately without O_CLOEXEC
  const auto process = SupervisedProcess::Start({.arguments = {"sh", "-c", "env; pwd; ls /proc/$$/fd; echo x >&7"},
                                                 .environment = {{"PATH=/usr/bin:/bin", "COLOUR=red"}},
                                                 .folder = "/",
                                                 .descriptors = {{ends[1], 7}}});
  ASSERT_TRUE(process.ok());
  const Said said = Talk(**process);
  EXPECT_THAT(said.out, testing::HasSubstr("COLOUR=red\n"));
  EXPECT_THAT(said.out, testing::Not(testing::HasSubstr("HOME=")));
  EXPECT_THAT(said.out, testing::HasSubstr("\n/\n"));
  EXPECT_THAT(said.out, testing::EndsWith("\n0\n1\n2\n7\n"));
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  close(ends[0]);
  close(ends[1]);
}

TEST(SupervisedProcess, ReadsTextsFromDescriptors) {
  const std::string large(1 << 20, 'x');
  const auto process = SupervisedProcess::Start(
      {.arguments = {"sh", "-c", "cat <&9; cat <&7; ls /proc/$$/fd"}, .texts = {{"seven\n", 7}, {large, 9}}});
  ASSERT_TRUE(process.ok());
  EXPECT_TRUE(Talk(**process).out == large + "seven\n0\n1\n2\n7\n9\n");
}

TEST(SupervisedProcess, AScriptIsNotOnTheCommandLineAndHasANameInTracebacks) {
  const std::string script =
      "import sys\n"
      "print(sys.argv, sys.path[0] == '', sys.stdin.read())\n"
      "print(open('/proc/self/cmdline').read())\n"
      "# a remark\n"
      "1 / 0\n";
  const auto process = SupervisedProcess::Start(
      {.arguments = {"python3", "-c", ScriptReader("game.py"), "word"}, .texts = {{script, kScriptNumber}}});
  ASSERT_TRUE(process.ok());
  const Said said = Talk(**process, "input");
  EXPECT_THAT(said.out, testing::StartsWith("['-c', 'word'] True input\n"));
  EXPECT_THAT(said.out, testing::Not(testing::HasSubstr("a remark")));
  EXPECT_THAT(said.err, Mentions({"\"<game.py>\", line 5", "ZeroDivisionError"}));
}

TEST(SupervisedProcess, HasAllVariablesOfALargeEnvironment) {
  std::vector<std::string> variables = {"PATH=/usr/bin:/bin"};
  std::string expected = "PATH=/usr/bin:/bin\n";
  for (int i = 0; i < 100; ++i) {
    variables.push_back(absl::StrCat("V", i, "=", std::string(static_cast<size_t>(i), 'x')));
    absl::StrAppend(&expected, variables.back(), "\n");
  }
  const auto process = SupervisedProcess::Start({.arguments = {"env"}, .environment = variables});
  ASSERT_TRUE(process.ok());
  EXPECT_EQ(Talk(**process).out, expected);
}

TEST(SupervisedProcess, WaitsOnlyUntilTheDeadline) {
  const auto process = StartShell("exec sleep 1000");
  EXPECT_THAT(process->Move("", absl::Now() + absl::Milliseconds(5)).status(),
              Fails(absl::StatusCode::kDeadlineExceeded, {"sh"}));
  EXPECT_THAT(process->Wait(absl::Now() + absl::Milliseconds(5)).status(),
              Fails(absl::StatusCode::kDeadlineExceeded, {"sh"}));
}

TEST(SupervisedProcess, AProgramThatClosesItsInputBreaksNoPipeHere) {
  const auto process = StartShell("exec <&-; echo closed; sleep 0.05; echo end");
  const std::string input(1 << 20, 'x');
  std::string out;
  while (process->output_open()) {
    const auto moved = process->Move(process->input_open() ? absl::string_view(input) : "", Patience());
    if (!moved.ok()) break;
    out += moved->out;
  }
  EXPECT_EQ(out, "closed\nend\n");
  EXPECT_FALSE(process->input_open());
}

TEST(SupervisedProcess, KillsAllDescendantsAlsoThoseThatLeftGroupAndSession) {
  // The child leaves the session, and its parent ends, so that it is an orphan; it ignores what can be ignored.
  auto process = StartShell(
      "(setsid sh -c 'trap \"\" TERM HUP INT; echo $$; exec >/dev/null 2>&1; sleep 1000 & sleep 1000' &); sleep 1000");
  const pid_t descendant = ReadPid(*process);
  EXPECT_TRUE(IsAlive(descendant));
  process->Kill();
  EXPECT_FALSE(IsAlive(descendant));
  EXPECT_EQ(process->Wait(absl::InfinitePast())->how, How::kSignaled);
}

TEST(SupervisedProcess, KillsWhatAProgramLeavesBehind) {
  const auto process = StartShell("sleep 1000 & echo $!; exit 0");
  const pid_t left = ReadPid(*process);
  EXPECT_THAT(*process->Wait(Patience()), Ended(How::kExited, 0));
  EXPECT_FALSE(IsAlive(left));
}

TEST(SupervisedProcess, KillsAllOnceThisProcessIsKilled) {
  std::array<int, 2> ends;
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const pid_t host = fork();
  if (host == 0) {
    const auto process = SupervisedProcess::Start({.arguments = {"sh", "-c", "setsid sleep 1000 & echo $!; wait"}});
    pid_t pid = process.ok() ? ReadPid(**process) : 0;
    if (write(ends[1], &pid, sizeof(pid)) != sizeof(pid)) _exit(1);
    pause();
    _exit(1);
  }
  pid_t descendant = 0;
  ASSERT_EQ(read(ends[0], &descendant, sizeof(descendant)), static_cast<ssize_t>(sizeof(descendant)));
  EXPECT_TRUE(IsAlive(descendant));
  kill(host, SIGKILL);
  waitpid(host, nullptr, 0);
  EXPECT_TRUE(Disappears(descendant));
  close(ends[0]);
  close(ends[1]);
}

TEST(SupervisedProcess, IsKilledWhenItAndItsChildrenUseTooMuchMemory) {
  if (kSanitized) GTEST_SKIP() << "measured without sanitizers";
  // No process alone reaches the limit.
  const std::string child = "python3 -c 'import time; x = bytearray(60 << 20); time.sleep(1000)'";
  const auto process =
      StartShell(absl::StrCat(child, " & ", child, " & ", child, " & wait"), {.memory_bytes = 150 << 20});
  const ProcessEnd end = *process->Wait(Patience());
  EXPECT_EQ(end.how, How::kTooMuchMemory);
  EXPECT_GE(end.memory_bytes, 150 << 20);
}

TEST(SupervisedProcess, HasLimitsOfItsOwn) {
  const auto process =
      StartShell("ulimit -t; ulimit -v; ulimit -f; ulimit -n; ulimit -c",
                 {.address_space_bytes = 1 << 30, .cpu_seconds = 7, .file_bytes = 1024, .open_files = 9});
  EXPECT_EQ(Talk(*process).out, "7\n1048576\n2\n9\n0\n");
}

TEST(SupervisedProcess, PassesSignalsToItsGroup) {
  const auto process =
      StartShell("trap 'echo caught; exit 6' USR1; trap '' TERM; echo $$; while :; do sleep 0.01; done");
  const pid_t pid = ReadPid(*process);
  process->Signal(SIGTERM);  // ignored
  process->Signal(SIGUSR1);
  EXPECT_EQ(Talk(*process).out, "caught\n");
  EXPECT_THAT(*process->Wait(Patience()), Ended(How::kExited, 6));
  EXPECT_FALSE(IsAlive(pid));
  process->Signal(SIGUSR1);  // to nobody
}

TEST(SupervisedProcess, AStoppedProgramGoesOnToHandleASignal) {
  const auto process = StartShell("echo $$; exec sleep 1000");
  const pid_t pid = ReadPid(*process);
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  process->Signal(SIGTERM);
  EXPECT_THAT(*process->Wait(Patience()), Ended(How::kSignaled, SIGTERM));
}

TEST(SupervisedProcess, AStoppedSupervisingProcessGoesOnToKill) {
  const auto process = StartShell("echo $$; exec sleep 1000");
  const pid_t pid = ReadPid(*process);
  ASSERT_EQ(kill(process->supervisor(), SIGSTOP), 0);
  process->StartKill();
  EXPECT_THAT(*process->Wait(Patience()), Ended(How::kSignaled, SIGKILL));
  EXPECT_FALSE(IsAlive(pid));
}

TEST(SupervisedProcess, AStoppedSupervisingProcessStillSeesThatItsParentEnds) {
  std::array<int, 2> ends;
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    const auto process = StartShell("sleep 1000 & echo $!; wait");
    const pid_t pid = ReadPid(*process);
    kill(process->supervisor(), SIGSTOP);
    if (write(ends[1], &pid, sizeof(pid)) != sizeof(pid)) _exit(1);
    kill(getpid(), SIGKILL);
  }
  ASSERT_GT(parent, 0);
  pid_t pid = 0;
  ASSERT_EQ(read(ends[0], &pid, sizeof(pid)), static_cast<ssize_t>(sizeof(pid)));
  ASSERT_EQ(waitpid(parent, nullptr, 0), parent);
  EXPECT_TRUE(Disappears(pid));
  close(ends[0]);
  close(ends[1]);
}

TEST(SupervisedProcess, WhatAKilledSupervisingProcessLeavesCanBeKilled) {
  const pid_t self = fork();  // which may adopt orphans without harm
  if (self == 0) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    const auto other = StartShell("echo $$; exec sleep 1000");
    const pid_t kept = ReadPid(*other);
    const auto process = StartShell("setsid sleep 1000 & echo $!; wait");
    const pid_t orphan = ReadPid(*process);
    kill(process->supervisor(), SIGKILL);
    const bool ended = process->Wait(Patience()).ok();
    const std::array<pid_t, 1> supervisors = {other->supervisor()};
    const absl::Time until = Patience();
    while (KillAdopted(supervisors) && absl::Now() < until) usleep(1000);
    _exit(ended && !IsAlive(orphan) && IsAlive(kept) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(self, &status, 0), self);
  EXPECT_EQ(status, 0);
}

TEST(SupervisedProcess, HoldsNoMemoryOfThisProcess) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's memory stays";
  const std::string large(256 << 20, 'x');
  const auto process = StartShell("echo $$; read line; exit 5");
  ReadPid(*process);
  int64_t kib = large.size() >> 10;
  for (const absl::Time until = Patience(); absl::Now() < until && kib >= 32 << 10; usleep(1000)) {
    std::ifstream file(absl::StrCat("/proc/", process->supervisor(), "/status"));
    std::stringstream text;
    text << file.rdbuf();
    const std::vector<std::string> parts = absl::StrSplit(text.str(), "RssAnon:");
    ASSERT_EQ(parts.size(), 2U);
    kib = std::strtol(parts[1].c_str(), nullptr, 10);
  }
  EXPECT_LT(kib, 32 << 10) << "beside the " << large.size() << " bytes of this process";
  // What is left suffices.
  process->CloseInput();
  EXPECT_THAT(*process->Wait(Patience()), Ended(How::kExited, 5));
}

}  // namespace
}  // namespace tdock
