#include "trainer/reward/external/code_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/mutex.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "trainer/reward/external/code_tests.h"

namespace tdock::reward {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Whether a process of this machine has `mark` in its command line.
bool Runs(const std::string& mark) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (absl::StrContains(text, mark)) return true;
  }
  return false;
}

class CodeSourceTest : public testing::Test {
 protected:
  CodeSourceTest() {
    options_.test_timeout = kNever;
    options_.timeout = kNever;
    options_.sandbox.python = "/usr/bin/python3";
    options_.sandbox.memory_bytes = int64_t{256} << 20;
  }

  // On a machine that cannot isolate, what is to be tested is that it refuses.
  bool Refused() {
    const absl::Status status = Make();
    if (status.ok()) return false;
    EXPECT_THAT(status, Fails(absl::StatusCode::kFailedPrecondition, {"isolate", "reward.code.allow_unisolated"}));
    return true;
  }

  // The source of these options; made anew only if they have changed, because that runs processes.
  absl::Status Make() {
    const std::string key =
        absl::StrCat(absl::FormatDuration(options_.test_timeout), " ", options_.all_or_nothing, " ",
                     options_.sandbox.file_bytes, " ", absl::StrJoin(options_.sandbox.allow_unisolated, ","));
    if (source_ != nullptr && made_of_ == key) return absl::OkStatus();
    auto made = MakeCodeSource(options_);
    if (!made.ok()) return made.status();
    source_ = *std::move(made);
    made_of_ = key;
    return absl::OkStatus();
  }

  SourceScore Score(const std::string& program, const std::string& truth) {
    EXPECT_EQ(Make(), absl::OkStatus());
    std::vector<Answer> answers(1);
    answers[0].response = absl::StrCat("So:\n```python\n", program, "\n```\nDone.");
    answers[0].truth = truth;
    SourceScore result;
    const absl::Status status = source_->Score(
        answers, [] { return absl::OkStatus(); },
        [&](size_t, absl::StatusOr<SourceScore> score) {
          EXPECT_TRUE(score.ok()) << score.status();
          if (score.ok()) result = *std::move(score);
        });
    EXPECT_TRUE(status.ok()) << status;
    return result;
  }
  // Whether a program prints this and nothing else.
  bool Prints(const std::string& program, const std::string& output) {
    const nlohmann::json truth = {{"inputs", {""}}, {"outputs", {output}}};
    const SourceScore score = Score(program, truth.dump());
    if (*score.score != 1) ADD_FAILURE() << score.message;
    return *score.score == 1;
  }

  CodeOptions options_;

 private:
  std::unique_ptr<ScoreSource> source_;
  std::string made_of_;
};

TEST_F(CodeSourceTest, RunsProgramsFunctionsAndAssertions) {
  if (Refused()) return;
  const std::string pairs = R"({"inputs":["1 2\n","3 4\n"],"outputs":["3\n","8"]})";
  EXPECT_EQ(Score("a, b = map(int, input().split())\nprint(a + b)", pairs).score, 0.5F);
  // Beyond 64 bits, integers are exact, too.
  const std::string big = R"({"fn_name":"f","inputs":[[100000000000000000001]],"outputs":[-200000000000000000002]})";
  EXPECT_EQ(Score("def f(n): return -2 * n", big).score, 1.0F);
  EXPECT_EQ(Score("def f(n): return -2 * n - 1", big).score, 0.0F);
  EXPECT_EQ(Score("def f(n): return float(-2 * n)", big).score, 1.0F);
  EXPECT_EQ(Score("def f(n): return {'\\0int': 'x'}", big).score, 0.0F);
  const std::string call = R"({"fn_name":"add","inputs":[[1,2],"3\n4"],"outputs":[[3],"7"]})";
  EXPECT_EQ(Score("def add(a, b): return a + b", call).score, 1.0F);
  EXPECT_EQ(Score("class Solution:\n  def add(self, a, b): return a + b + (b > 2)", call).score, 0.5F);
  const std::string list =
      R"json(["assert add(1, 2) == 3", "import math\nassert math.isclose(add(1, 1), 2)", "assert add(1, 1) == 3"])json";
  EXPECT_NEAR(*Score("def add(a, b): return a + b", list).score, 2.0F / 3, 1e-6);
  const std::string text = "def check(f):\n    assert f(2) == 4\ncheck(twice)\n";
  EXPECT_EQ(Score("def twice(a): return 2 * a", text).score, 1.0F);
  EXPECT_EQ(Score("def twice(a): return a", text).score, 0.0F);
  options_.all_or_nothing = true;
  EXPECT_EQ(Score("a, b = map(int, input().split())\nprint(a + b)", pairs).score, 0.0F);
}

TEST_F(CodeSourceTest, IsUndecidedWithoutTests) {
  if (Refused()) return;
  EXPECT_TRUE(Score("print(1)", "42").undecided);
  EXPECT_TRUE(Score("print(1)", R"({"inputs":["a"],"outputs":[]})").undecided);
  EXPECT_TRUE(Score("print(1)", "assert (").undecided);
}

TEST_F(CodeSourceTest, CannotBePersuadedThatTestsPass) {
  if (Refused()) return;
  const std::string test = "[\"assert f(1) == 2\"]";
  const std::string weak = "[\"assert 2 == f(1) or False\"]";
  const std::string always = "class A:\n  def __eq__(s, o): return True\n  __hash__ = None\ndef f(x): return A()\n";
  EXPECT_EQ(Score(always, test).score, 0.0F);
  EXPECT_EQ(Score("class I(int):\n  def __eq__(s, o): return True\ndef f(x): return I(7)", test).score, 0.0F);
  for (const std::string& truth : {test, weak}) {
    EXPECT_EQ(Score("import sys; sys.exit(0)", truth).score, 0.0F);
    EXPECT_EQ(Score("import os; os._exit(0)", truth).score, 0.0F);
    EXPECT_EQ(Score("print('{\"passed\": true, \"value\": 2}')\ndef f(x): return 3", truth).score, 0.0F);
    EXPECT_EQ(Score("import builtins\nbuiltins.exec = builtins.eval = builtins.compile = lambda *a: None", truth).score,
              0.0F);
    EXPECT_EQ(Score("raise SystemExit(0)", truth).score, 0.0F);
  }
}

TEST_F(CodeSourceTest, DoesNotShowWhatIsExpected) {
  if (Refused()) return;
  // It looks for the text backwards, so as not to find itself.
  const std::string search =
      "import gc, os\nkey = '24eldeen'\nfound = key in str(gc.get_objects())[::-1]\n"
      "for pid in os.listdir('/proc'):\n  for name in ('cmdline', 'environ', 'fd/0', 'fd/4'):\n"
      "    try: found |= key.encode() in open(f'/proc/{pid}/{name}', 'rb').read(1 << 20)[::-1]\n"
      "    except OSError: pass\n"
      "f = lambda x: key[::-1] if found else 'nothing'\n";
  EXPECT_EQ(Score(search, R"({"fn_name":"f","inputs":[[1]],"outputs":["needle42"]})").score, 0.0F);
  EXPECT_EQ(Score(search, "[\"assert f(1) == 'needle42'\"]").score, 0.0F);
  EXPECT_EQ(Score(search, "[\"assert f('needle42') != f\"]").score, 1.0F);  // it does run
}

TEST_F(CodeSourceTest, ReachesNoNetwork) {
  if (Refused()) return;
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 4), 0);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  EXPECT_TRUE(
      Prints(absl::StrCat("import socket\ntry:\n  socket.create_connection(('127.0.0.1', ", ntohs(address.sin_port),
                          "), 2)\n  print('connected')\nexcept OSError: print('refused')"),
             "refused"));
  EXPECT_EQ(::accept(listener, nullptr, nullptr), -1);
  EXPECT_EQ(errno, EAGAIN);
  ::close(listener);
}

TEST_F(CodeSourceTest, SeesAndWritesOnlyItsOwnFiles) {
  if (Refused()) return;
  const std::string folder = std::filesystem::current_path().string();
  EXPECT_TRUE(
      Prints(absl::StrCat("import os\nfor path in ('/etc/shadow', '/etc/passwd', '/root', '/home', '/var', '/sys', '",
                          folder, "/README.md'):\n  if os.path.exists(path): print(path)\nprint(sorted(os.environ))"),
             "['HOME', 'LANG', 'OPENBLAS_NUM_THREADS', 'PATH', 'PWD', 'PYTHONHASHSEED']"));
  EXPECT_TRUE(
      Prints("import os\nfor path in ('/x', '/usr/x', '/usr/bin/x', '/dev/x', '/proc/sys/kernel/hostname', "
             "'/proc/sys/kernel/core_pattern', '/proc/self/oom_score_adj'):\n"
             "  try: open(path, 'w'); print(path)\n  except OSError: pass\n"
             "open('/tmp/x', 'w').write('mine')\nprint(open('/tmp/x').read())",
             "mine"));
  EXPECT_TRUE(Prints("import os\nprint(os.path.exists('/tmp/x'), os.getuid())", "False 65534"));
  EXPECT_TRUE(
      Prints("import os\nnames = []\nfor fd in range(3, 256):\n  try: names.append(os.fstat(fd) and fd)\n"
             "  except OSError: pass\nprint(names)",
             "[]"));
}

TEST_F(CodeSourceTest, CannotTouchOtherProcesses) {
  if (Refused()) return;
  EXPECT_TRUE(Prints(absl::StrCat("import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
                                  "print(len([p for p in os.listdir('/proc') if p.isdigit()]) <= 2)\n"
                                  "print(libc.ptrace(16, 1, 0, 0), libc.unshare(0x10000000))\n"
                                  "try: os.kill(",
                                  getpid(), ", 9)\nexcept ProcessLookupError: print('nobody')"),
                     "True\n-1 -1\nnobody"));
  EXPECT_TRUE(
      Prints("import os, subprocess\nfor start in (os.fork, lambda: subprocess.run(['/bin/true'])):\n"
             "  try: start(); print('started')\n  except OSError: print('refused')\n"
             "import threading\nt = threading.Thread(target=print, args=('thread',)); t.start(); t.join()",
             "refused\nrefused\nthread"));
}

TEST_F(CodeSourceTest, BoundsTimeMemoryFilesAndOutput) {
  if (Refused()) return;
  options_.test_timeout = absl::Milliseconds(700);
  const std::string truth = R"({"inputs":[""],"outputs":["x"]})";
  EXPECT_THAT(Score("while True: pass", truth).message, HasSubstr("too long"));
  EXPECT_THAT(Score("import os\nos.close(1); os.close(2)\nwhile True: pass", truth).message, HasSubstr("too long"));
  EXPECT_THAT(Score("import signal, time\nfor s in range(1, 32):\n  try: signal.signal(s, signal.SIG_IGN)\n"
                    "  except (OSError, ValueError): pass\ntime.sleep(86400)",
                    truth)
                  .message,
              HasSubstr("too long"));
  EXPECT_EQ(
      Score("import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(86400,)).start()", truth)
          .score,
      0.0F);
  options_.test_timeout = absl::Seconds(3);  // without a message to assert, so that too short a time is no failure
  EXPECT_EQ(Score("f = open('/tmp/big', 'wb')\nwhile True: f.write(bytes(1 << 20))", truth).score, 0.0F);
  EXPECT_EQ(Score("i = 0\nwhile True:\n  i += 1\n  open(f'/tmp/{i}', 'wb').write(bytes(1 << 22))", truth).score, 0.0F);
  EXPECT_EQ(Score("import sys\nsys.setrecursionlimit(10**9)\nf = lambda x: f([x])\nf(1)", truth).score, 0.0F);
  options_.test_timeout = kNever;
  EXPECT_THAT(Score("while True: print('x' * 10000)", truth).message, HasSubstr("too much"));
  EXPECT_THAT(Score("x = bytearray(1 << 30)", truth).message, HasSubstr("MemoryError"));
}

TEST_F(CodeSourceTest, LeavesNoProcessBehind) {
  if (Refused()) return;
  options_.test_timeout = absl::Seconds(1);
  options_.sandbox.file_bytes = (int64_t{16} << 20) + getpid();  // what its command line is known by
  Score("import os, time\ntry:\n  if os.fork() == 0: os.setsid(); os.fork()\nexcept OSError: pass\ntime.sleep(86400)",
        R"({"inputs":[""],"outputs":["x"]})");
  EXPECT_FALSE(Runs(absl::StrCat(options_.sandbox.file_bytes)));
}

TEST_F(CodeSourceTest, EndsSoonWhenItIsToStop) {
  if (Refused()) return;
  const auto source = MakeCodeSource(options_);
  ASSERT_TRUE(source.ok());
  std::vector<Answer> answers(3);
  for (Answer& answer : answers) {
    answer.response = "while True: pass";
    answer.truth = R"({"inputs":[""],"outputs":["x"]})";
  }
  std::atomic<int> asked = 0;
  EXPECT_THAT((*source)->Score(
                  answers, [&] { return ++asked > 3 ? absl::CancelledError("enough") : absl::OkStatus(); },
                  [](size_t, const absl::StatusOr<SourceScore>&) {}),
              Fails(absl::StatusCode::kCancelled, {"enough"}));
}

TEST_F(CodeSourceTest, RefusesWithoutPythonOrWithUnknownExceptions) {
  options_.sandbox.allow_unisolated = {"disk"};
  EXPECT_THAT(MakeCodeSource(options_).status(), Fails(absl::StatusCode::kInvalidArgument, {"disk", "network"}));
  options_.sandbox.allow_unisolated = {};
  options_.sandbox.python = "/nowhere/python";
  EXPECT_THAT(MakeCodeSource(options_).status(), Fails(absl::StatusCode::kNotFound, {"/nowhere/python"}));
}

TEST_F(CodeSourceTest, RefusesToRunWithoutASandboxUnlessToldSo) {
  const std::string path = getenv("PATH");
  ASSERT_EQ(setenv("PATH", "/nowhere", 1), 0);  // where no bubblewrap is
  EXPECT_THAT(Make(), Fails(absl::StatusCode::kFailedPrecondition, {"isolate", "bwrap", "everything"}));
  options_.sandbox.allow_unisolated = {"network"};
  EXPECT_THAT(Make(), Fails(absl::StatusCode::kFailedPrecondition, {"isolate", "everything"}));
  options_.sandbox.allow_unisolated = {"everything"};
  EXPECT_EQ(Make(), absl::OkStatus());
  EXPECT_TRUE(Prints("print(6 * 7)", "42"));
  ASSERT_EQ(setenv("PATH", path.c_str(), 1), 0);
}

TEST(CodeTests, TakesTheLastPythonBlock) {
  EXPECT_EQ(ProgramOf("```python\na\n```\n```py\nb\n```\n```\nc\n```"), "b\n");
  EXPECT_EQ(ProgramOf("```cpp\na\n```\nx\n```\nc\n```"), "c\n");
  EXPECT_EQ(ProgramOf("```python\nunfinished"), "unfinished");
  EXPECT_EQ(ProgramOf("print(1)"), "print(1)");
}

TEST(CodeTests, ComparesOutputsAndResults) {
  EXPECT_TRUE(SameOutput(" 1 \n2\n\n", "1\n2"));
  EXPECT_FALSE(SameOutput("1 2", "1\n2"));
  EXPECT_TRUE(SameResult({1, 2.0}, {1, 2}));
  EXPECT_TRUE(SameResult(0.1 + 0.2, 0.3));
  EXPECT_FALSE(SameResult("1", 1));
  EXPECT_FALSE(SameResult({{"a", 1}}, {{"b", 1}}));
}

}  // namespace
}  // namespace tdock::reward
