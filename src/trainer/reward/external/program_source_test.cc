#include "trainer/reward/external/program_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/mutex.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "core/base/testing/sanitized.h"

namespace tdock::reward {
namespace {

using absl::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

// The score of a sample is the length of its completion.
constexpr char kPrelude[] = R"(
import json, os, signal, subprocess, sys, time
def read():
    line = sys.stdin.readline()
    if not line: sys.exit(0)
    return json.loads(line)
def say(**message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
def hello():
    read()
    say(type="hello", protocol=1, name="test")
def score(sample): return {"sample": sample["sample"], "score": len(sample["completion"])}
def answer(batch, scores): say(type="scores", batch=batch["batch"], scores=scores)
def serve(one=score):
    while True:
        batch = read()
        for sample in batch["samples"]: answer(batch, [one(sample)])
)";

std::vector<Answer> AnswersOf(size_t count) {
  std::vector<Answer> answers(count);
  for (size_t i = 0; i < count; ++i) answers[i] = {.prompt = "p", .response = std::string(i, 'x'), .truth = "t"};
  return answers;
}

struct Outcome {
  absl::Status status;
  std::map<size_t, float> scores;
  std::map<size_t, absl::Status> problems;
  int twice = 0;  // answers that came more than once
};

class ProgramSourceTest : public testing::Test {
 protected:
  ProgramSourceTest() {
    std::string path = testing::TempDir() + "/program_source_XXXXXX";
    folder_ = ::mkdtemp(path.data());
  }
  ~ProgramSourceTest() override { std::filesystem::remove_all(folder_); }

  // What a program of this text, behind kPrelude, says about answers of length 0, 1, …; F in it is a folder.
  ProgramOptions Program(const std::string& script) {
    ProgramOptions options{
        .name = "test",
        .arguments = {"python3", "-S", "-c", absl::StrCat(kPrelude, "\nF = '", folder_, "/'\n", script)}};
    options.batch_size = 4;
    options.timeout = kNever;
    options.start_timeout = kNever;
    options.log = [this](const std::string& line) {
      MutexLock lock(mu_);
      log_.push_back(line);
    };
    return options;
  }
  Outcome Run(const ProgramOptions& options, size_t count = 6) {
    const std::unique_ptr<ScoreSource> source = MakeProgramSource(options);
    return Score(*source, count);
  }
  Outcome Score(
      ScoreSource& source, size_t count, const StopCheck& check_stop = [] { return absl::OkStatus(); }) {
    Outcome outcome;
    Mutex mu;
    const std::vector<Answer> answers = AnswersOf(count);
    outcome.status = source.Score(answers, check_stop, [&](size_t i, absl::StatusOr<SourceScore> score) {
      MutexLock lock(mu);
      outcome.twice += outcome.scores.contains(i) || outcome.problems.contains(i) ? 1 : 0;
      if (score.ok()) {
        outcome.scores[i] = score->score.value_or(-1);
      } else {
        outcome.problems[i] = score.status();
      }
    });
    EXPECT_EQ(outcome.twice, 0);
    return outcome;
  }
  // Runs the program with longer and longer timeouts, until all samples but one have a score: the timeout was long
  // enough for them.
  Outcome RunWithLongerTimeouts(ProgramOptions& options) {
    options.timeout = absl::Milliseconds(300);
    for (;; options.timeout *= 4) {
      Outcome outcome = Run(options);
      if ((outcome.status.ok() && outcome.scores.size() == 5) || options.timeout > kPatience) return outcome;
    }
  }
  // The lines since the last call.
  std::vector<std::string> Log() {
    MutexLock lock(mu_);
    return std::exchange(log_, {});
  }
  std::string FileText(const std::string& name) {
    std::ifstream file(folder_ + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // The process whose number is in this file.
  bool IsAlive(const std::string& name) {
    int pid = 0;
    EXPECT_TRUE(absl::SimpleAtoi(FileText(name), &pid)) << name;
    std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
    std::string line;
    return std::getline(file, line) && line[line.rfind(')') + 2] != 'Z';
  }

  std::string folder_;

 private:
  Mutex mu_;
  std::vector<std::string> log_ TDOCK_GUARDED_BY(mu_);
};

// All samples have their scores, whatever happened to the program.
void ExpectAllScored(const Outcome& outcome, size_t count = 6) {
  EXPECT_EQ(outcome.status, absl::OkStatus());
  EXPECT_THAT(outcome.problems, IsEmpty());
  ASSERT_THAT(outcome.scores, SizeIs(count));
  for (const auto& [i, score] : outcome.scores) EXPECT_EQ(score, static_cast<float>(i));
}

// Does `what` with the sample of length 2 until it has happened once.
std::string Once(const std::string& what) {
  return absl::StrCat("hello()\nwhile True:\n  batch = read()\n  done = []\n  for s in batch['samples']:\n",
                      "    if len(s['completion']) == 2 and not os.path.exists(F + 'done'):\n",
                      "      open(F + 'done', 'w')\n      ", what, "\n    answer(batch, [score(s)])\n");
}

TEST_F(ProgramSourceTest, ScoresEachAnswerOnce) {
  ProgramOptions options = Program("hello()\nserve()");
  ExpectAllScored(Run(options, 50), 50);
  options.processes = 3;
  ExpectAllScored(Run(options, 50), 50);
  EXPECT_THAT(Run(options, 0).scores, IsEmpty());
  EXPECT_THAT(Log(), IsEmpty());
}

TEST_F(ProgramSourceTest, KeepsItsProcessesFromBatchToBatch) {
  const auto source = MakeProgramSource(Program("open(F + 'starts', 'a').write('x')\nhello()\nserve()"));
  for (int i = 0; i < 3; ++i) ExpectAllScored(Score(*source, 6));
  EXPECT_EQ(FileText("starts"), "x");
}

TEST_F(ProgramSourceTest, TellsTheProgramEverythingAboutASample) {
  ProgramOptions options = Program(
      "h = read()\nsay(type='hello', protocol=1)\nb = read()\n"
      "open(F + 'said', 'w').write(json.dumps([h, b], sort_keys=True))\n"
      "answer(b, [score(s) for s in b['samples']])\nread()");
  options.columns = {"extra"};
  const auto source = MakeProgramSource(options);
  const Answer answer{.prompt = "Größe?",
                      .response = "4\xff",
                      .finished = true,
                      .truth = "4",
                      .source = "s",
                      .messages = R"([{"role":"user","content":"hi"}])",
                      .columns = {{"extra", "{}"}}};
  EXPECT_EQ(source->Score(
                {&answer, 1}, [] { return absl::OkStatus(); }, [](size_t, auto) {}),
            absl::OkStatus());
  EXPECT_EQ(FileText("said"),
            R"([{"columns": ["extra"], "protocol": 1, "type": "hello"}, {"batch": 1, "samples": [{"columns": )"
            R"({"extra": "{}"}, "completion": "4\ufffd", "finished": true, "messages": [{"content": "hi", "role": )"
            R"("user"}], "prompt": "Gr\u00f6\u00dfe?", "sample": 0, "source": "s", "truth": "4"}], "type": "score"}])");
}

TEST_F(ProgramSourceTest, NullIsNoScoreAndPartsAreKept) {
  const auto source = MakeProgramSource(
      Program("hello()\nb = read()\nanswer(b, [{'sample': 0, 'score': None, 'parts': {'form': 0.5}, 'message': "
              "'fine'}])\nread()"));
  const std::vector<Answer> answers = AnswersOf(1);
  SourceScore got;
  EXPECT_EQ(
      source->Score(
          answers, [] { return absl::OkStatus(); }, [&](size_t, absl::StatusOr<SourceScore> score) { got = *score; }),
      absl::OkStatus());
  EXPECT_FALSE(got.score.has_value());
  EXPECT_THAT(got.parts, ElementsAre(testing::Pair("form", 0.5F)));
  EXPECT_EQ(got.message, "fine");
  EXPECT_GT(got.seconds, 0);
}

TEST_F(ProgramSourceTest, DiesAtStart) {
  // The error has the exit code only if the process is reaped soon after its last output, so a loaded machine needs
  // several attempts.
  Outcome outcome;
  EXPECT_TRUE(Eventually([&] {
    outcome = Run(Program("print('no torch', file=sys.stderr)\nsys.exit(3)"));
    return absl::StrContains(outcome.status.message(), "code 3");
  }));
  EXPECT_THAT(outcome.status, Fails(StatusCode::kUnavailable, {"test", "code 3", "no torch"}));
}

TEST_F(ProgramSourceTest, DoesNotExist) {
  EXPECT_THAT(Run({.name = "test", .arguments = {"no-such-program"}}).status,
              Fails(StatusCode::kNotFound, {"reward program test", "no-such-program"}));
}

TEST_F(ProgramSourceTest, SaysAWrongHello) {
  EXPECT_THAT(Run(Program("say(type='hello', protocol=2)\nread()")).status,
              Fails(StatusCode::kInvalidArgument, {"version 2", "version 1"}));
  EXPECT_THAT(Run(Program("print('loading the model', end='')\nread()")).status,
              Fails(StatusCode::kUnavailable, {"unfinished", "\"loading the model\""}));
  EXPECT_THAT(Run(Program("print('loading the model', flush=True)\nread()\nread()")).status,
              Fails(StatusCode::kInvalidArgument, {"\"loading the model\"", "protocol"}));
}

TEST_F(ProgramSourceTest, SaysNoHelloInTime) {
  ProgramOptions options = Program("time.sleep(86400)");
  options.start_timeout = absl::Milliseconds(200);
  EXPECT_THAT(Run(options).status, Fails(StatusCode::kDeadlineExceeded, {"hello", "200ms", "reward.start_timeout"}));
}

TEST_F(ProgramSourceTest, DiesInTheMiddleOfABatch) {
  ExpectAllScored(Run(Program(Once("os._exit(7)"))));
  EXPECT_THAT(Log(), ElementsAre(Mentions({"reward test: ", "started again"})));
}

TEST_F(ProgramSourceTest, Hangs) {
  ProgramOptions options = Program(
      "hello()\ndef one(s):\n  if len(s['completion']) == 2: time.sleep(86400)\n"
      "  return score(s)\nserve(one)");
  options.retries = 1;
  const Outcome outcome = RunWithLongerTimeouts(options);
  EXPECT_EQ(outcome.status, absl::OkStatus());
  EXPECT_THAT(outcome.scores, SizeIs(5));
  EXPECT_THAT(outcome.problems.at(2),
              Fails(StatusCode::kDeadlineExceeded,
                    {"try 1: ", "try 2: ", absl::FormatDuration(options.timeout), "reward.timeout"}));
}

TEST_F(ProgramSourceTest, WritesALineWithoutEnd) {
  ExpectAllScored(Run(Program(Once("[sys.stdout.write('x' * 1000000) for _ in range(40)]"))));
  EXPECT_THAT(Log(), ElementsAre(Mentions({"16 MiB", "xxx"})));
}

TEST_F(ProgramSourceTest, FloodsItsOutputWithLines) {
  ExpectAllScored(Run(Program(Once("[print('spam') for _ in range(100000)]"))));
  EXPECT_THAT(Log(), ElementsAre(HasSubstr("spam")));
}

TEST_F(ProgramSourceTest, ItsNotesReachTheLogOnceHoweverManyProcessesSayThem) {
  ProgramOptions options = Program("print('note: it is so', file=sys.stderr, flush=True)\nhello()\nserve()");
  options.processes = 3;
  ExpectAllScored(Run(options, 50), 50);
  EXPECT_THAT(Log(), ElementsAre("reward test: note: it is so"));
}

TEST_F(ProgramSourceTest, FloodsItsStandardError) {
  ExpectAllScored(Run(Program(Once("[print('spam', 'y' * 990, file=sys.stderr) for _ in range(5000)]"))));
  const std::vector<std::string> log = Log();
  ASSERT_THAT(log, Not(IsEmpty()));
  EXPECT_THAT(log[0], testing::StartsWith("reward test: spam yyy"));
  int64_t shown = 0, left_out = 0;
  for (absl::string_view line : log) {
    EXPECT_LT(line.size(), 600U);
    int64_t count = 0;
    if (absl::ConsumePrefix(&line, "reward test: (") && absl::SimpleAtoi(line.substr(0, line.find(' ')), &count)) {
      left_out += count;
    } else {
      ++shown;
    }
  }
  EXPECT_EQ(shown + left_out, 5000);
  EXPECT_GT(left_out, shown);
}

TEST_F(ProgramSourceTest, PrintsGarbage) {
  ExpectAllScored(Run(Program(Once("print('\\x00\\x1b[31m{]')"))));
  EXPECT_THAT(Log(), ElementsAre(HasSubstr(R"(\x1b[31m{])")));
}

TEST_F(ProgramSourceTest, AnswersOtherSamples) {
  ExpectAllScored(Run(Program(Once("answer(batch, [{'sample': 99, 'score': 1}])"))));
  EXPECT_THAT(Log(), ElementsAre(Mentions({"sample 99"})));
}

TEST_F(ProgramSourceTest, AnswersAnotherBatch) {
  ExpectAllScored(Run(Program(Once("answer({'batch': 77}, [score(s)])"))));
  EXPECT_THAT(Log(), ElementsAre(Mentions({"batch 77", "batch 1 "})));
}

TEST_F(ProgramSourceTest, AnswersTwice) {
  ExpectAllScored(Run(Program(Once("answer(batch, [score(batch['samples'][0])])"))));
  EXPECT_THAT(Log(), ElementsAre(Mentions({"sample 0", "twice"})));
}

TEST_F(ProgramSourceTest, GivesNoFiniteNumberAsScore) {
  // What is no JSON ends the process. Of the others a second try could only hide the fault.
  for (const auto& [value, names] :
       std::map<std::string, std::vector<std::string>>{{"NaN", {"try 1", "try 2", "NaN"}},
                                                       {"Infinity", {"try 1", "try 2", "Infinity"}},
                                                       {"1e300", {"try 1", "finite"}},
                                                       {"\"0.5\"", {"try 1", "no number"}},
                                                       {"[1]", {"try 1", "no number"}}}) {
    ProgramOptions options = Program(absl::StrCat(
        "hello()\nwhile True:\n  batch = read()\n  for s in batch['samples']:\n",
        "    if len(s['completion']) == 2:\n      print('{\"type\":\"scores\",\"batch\":%d,\"scores\":[{\"sample\":2,",
        "\"score\":", value, "}]}' % batch['batch'], flush=True)\n    else: answer(batch, [score(s)])\n"));
    options.retries = 1;
    const Outcome outcome = Run(options);
    EXPECT_EQ(outcome.status, absl::OkStatus());
    EXPECT_THAT(outcome.scores, SizeIs(5));
    EXPECT_THAT(outcome.problems.at(2), Fails(StatusCode::kInvalidArgument, names));
    EXPECT_EQ(absl::StrContains(outcome.problems.at(2).message(), "try 2"), names.size() == 3) << value;
  }
}

TEST_F(ProgramSourceTest, GivesTooFewScores) {
  ProgramOptions options = Program(
      "hello()\nwhile True:\n  batch = read()\n"
      "  answer(batch, [score(s) for s in batch['samples'] if len(s['completion']) != 2])");
  options.retries = 0;
  const Outcome outcome = RunWithLongerTimeouts(options);
  EXPECT_THAT(outcome.scores, SizeIs(5));
  EXPECT_THAT(outcome.problems.at(2),
              Fails(StatusCode::kDeadlineExceeded, {absl::FormatDuration(options.timeout), "reward.timeout"}));
}

TEST_F(ProgramSourceTest, ClosesItsOutputButLives) {
  ExpectAllScored(Run(Program(Once("open(F + 'pid', 'w').write(str(os.getpid())); os.close(1); time.sleep(86400)"))));
  EXPECT_THAT(Log(), ElementsAre(Mentions({"standard output"})));
  EXPECT_FALSE(IsAlive("pid"));
}

TEST_F(ProgramSourceTest, LeavesChildrenThatWouldOutliveIt) {
  ExpectAllScored(
      Run(Program("p = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
                  "open(F + 'pid', 'w').write(str(p.pid))\nhello()\nserve()")));
  EXPECT_FALSE(IsAlive("pid"));
}

TEST_F(ProgramSourceTest, IgnoresEverySignalAndTheEndOfItsInput) {
  ExpectAllScored(
      Run(Program("for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(s, "
                  "signal.SIG_IGN)\nopen(F + 'pid', 'w').write(str(os.getpid()))\nhello()\n"
                  "try: serve()\nexcept SystemExit: time.sleep(86400)")));
  EXPECT_FALSE(IsAlive("pid"));
}

TEST_F(ProgramSourceTest, UsesTooMuchMemory) {
  if (kSanitized) GTEST_SKIP() << "measured without sanitizers";
  ProgramOptions options = Program(Once("x = bytearray(300 << 20); time.sleep(86400)"));
  options.memory_bytes = 100 << 20;
  std::vector<std::string> log;
  EXPECT_TRUE(Eventually([&] {  // as in DiesAtStart
    std::filesystem::remove(folder_ + "/done");
    ExpectAllScored(Run(options));
    log = Log();
    return testing::Value(log, ElementsAre(Mentions({" MiB of ", "memory"})));
  })) << testing::PrintToString(log);
}

TEST_F(ProgramSourceTest, DiesEachTime) {
  ProgramOptions options = Program("hello()\nread()\nprint('broken', file=sys.stderr)\nos._exit(1)");
  options.max_restarts = 3;
  options.retries = 100;
  const Outcome outcome = Run(options);
  EXPECT_THAT(outcome.status, Fails(StatusCode::kUnavailable, {"test", "4 times", "reward.max_restarts", "broken"}));
}

TEST_F(ProgramSourceTest, OnePoisonedSampleIsKnownAmongGoodOnes) {
  ProgramOptions options = Program(
      "hello()\ndef one(s):\n  if len(s['completion']) == 9:\n"
      "    print('cannot read', s['completion'], file=sys.stderr)\n    os._exit(9)\n"
      "  return score(s)\nserve(one)");
  options.batch_size = 8;
  const Outcome outcome = Run(options, 20);
  EXPECT_EQ(outcome.status, absl::OkStatus());
  EXPECT_THAT(outcome.scores, SizeIs(19));
  EXPECT_THAT(outcome.problems.at(9),
              Fails(StatusCode::kUnavailable, {"try 1:", "try 2:", "try 3:", "cannot read xxxxxxxxx"}));
}

TEST_F(ProgramSourceTest, AnErrorOfTheProgramIsATryAndNoDeath) {
  ProgramOptions options = Program(
      "open(F + 'starts', 'a').write('x')\nhello()\ndef one(s):\n"
      "  if len(s['completion']) == 1: return {'sample': s['sample'], 'error': 'no unit'}\n"
      "  return score(s)\nserve(one)");
  const Outcome outcome = Run(options);
  EXPECT_THAT(outcome.problems.at(1), Fails(StatusCode::kUnknown, {"try 3: ", "no unit"}));
  EXPECT_THAT(outcome.scores, SizeIs(5));
  EXPECT_EQ(FileText("starts"), "x");
}

TEST_F(ProgramSourceTest, ASampleIsNotSentAgainIfTheProgramSaysThatItIsOfNoUse) {
  ProgramOptions options = Program(
      "hello()\nseen = set()\ndef one(s):\n"
      "  if s['sample'] == 1 and not seen:\n    seen.add(1)\n"
      "    return {'sample': 1, 'error': '1 score for 4 samples', 'retry': False}\n"
      "  return score(s)\nserve(one)");
  const Outcome outcome = Run(options);
  EXPECT_THAT(outcome.problems.at(1), Fails(StatusCode::kFailedPrecondition, {"try 1: ", "1 score for 4 samples"}));
  EXPECT_THAT(outcome.scores, SizeIs(5));
}

TEST_F(ProgramSourceTest, AStoppedRunEndsSoonAndKeepsItsScores) {
  ProgramOptions options = Program(
      "open(F + 'pid', 'w').write(str(os.getpid()))\nhello()\ndef one(s):\n"
      "  if len(s['completion']) == 3: time.sleep(86400)\n  return score(s)\nserve(one)");
  const auto source = MakeProgramSource(options);
  std::atomic<int> scored = 0;
  const std::vector<Answer> answers = AnswersOf(6);
  const absl::Status status = source->Score(
      answers, [&]() -> absl::Status { return scored < 3 ? absl::OkStatus() : absl::CancelledError("interrupted"); },
      [&](size_t, absl::StatusOr<SourceScore> score) { scored += score.ok() ? 1 : 0; });
  EXPECT_EQ(status, absl::CancelledError("interrupted"));
  EXPECT_EQ(scored, 3);
  EXPECT_FALSE(IsAlive("pid"));
}

TEST_F(ProgramSourceTest, NoProcessIsLeftWhenTheHostIsKilled) {
  const ProgramOptions options = Program(
      "p = subprocess.Popen(['sleep', '1000'], start_new_session=True)\nopen(F + 'child', 'w').write(str(p.pid))\n"
      "hello()\nread()\nopen(F + 'program', 'w').write(str(os.getpid()))\nos.rename(F + 'program', F + 'ready')\n"
      "time.sleep(86400)");
  const pid_t host = fork();
  if (host == 0) {
    Run(options);
    _exit(0);
  }
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(folder_ + "/ready"); }));
  ASSERT_TRUE(IsAlive("ready"));
  kill(host, SIGKILL);
  waitpid(host, nullptr, 0);
  EXPECT_TRUE(Eventually([&] { return !IsAlive("ready"); }));
  EXPECT_TRUE(Eventually([&] { return !IsAlive("child"); }));
}

TEST_F(ProgramSourceTest, SeveralBatchesMayBeScoredAtOnce) {
  ProgramOptions options = Program("hello()\nserve()");
  options.processes = 2;
  const auto source = MakeProgramSource(options);
  std::thread other([&] { ExpectAllScored(Score(*source, 30), 30); });
  ExpectAllScored(Score(*source, 30), 30);
  other.join();
}

}  // namespace
}  // namespace tdock::reward
