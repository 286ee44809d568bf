#include "trainer/environment/program_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "trainer/environment/testing/one_request.h"

namespace tdock::environment {
namespace {

using absl::StatusCode;
using testing::Contains;
using testing::ElementsAre;
using testing::Pair;
using testing::SizeIs;

// A game that says what it was given, and ends once the model says "stop".
constexpr char kPrelude[] = R"(
import json, os, sys, time
def read():
    line = sys.stdin.readline()
    if not line: sys.exit(0)
    return json.loads(line)
def say(**message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
def hello(**more):
    global greeting
    greeting = read()
    say(type="hello", protocol=1, name="test", **more)
def observe(message, text, **more):
    say(type="observation", episode=message["episode"], messages=[{"role": "user", "content": text}], **more)
def play(message):
    if message["type"] == "reset": observe(message, "%s of seed %d" % (message["row"]["prompt"], message["seed"]))
    if message["type"] == "step":
        said = message["message"]["content"]
        observe(message, "you said " + said, done=said == "stop", rewards={"length": len(said)})
def tell(what): print(str(what).replace("'", ""), file=sys.stderr)
def serve():
    while True: play(read())
def once(name):
    try: os.close(os.open(F + name, os.O_CREAT | os.O_EXCL))
    except FileExistsError: return False
    return True
)";

class ProgramEnvironmentTest : public testing::Test {
 protected:
  static text::Turn Says(const std::string& text) { return {.role = text::Role::kAssistant, .content = text}; }
  ProgramEnvironmentTest() {
    std::string path = testing::TempDir() + "/program_environment_XXXXXX";
    folder_ = ::mkdtemp(path.data());
  }
  ~ProgramEnvironmentTest() override { std::filesystem::remove_all(folder_); }

  // A program of this text behind kPrelude; F in it is a folder.
  ProgramEnvironmentOptions Program(const std::string& script) {
    ProgramEnvironmentOptions options{
        .name = "test",
        .arguments = {"python3", "-S", "-c", absl::StrCat(kPrelude, "\nF = '", folder_, "/'\n", script)}};
    options.timeout = kNever;
    options.start_timeout = kNever;
    options.setup.columns = {"level"};
    options.setup.model = "/models/small";
    options.setup.log = [this](const std::string& line) {
      MutexLock lock(mu_);
      log_.push_back(line);
    };
    return options;
  }
  void Start(const ProgramEnvironmentOptions& options) {
    environment_ = MakeProgramEnvironment(options);
    const absl::StatusOr<Environment::Description> started = environment_->Start();
    ASSERT_TRUE(started.ok()) << started.status();
    description_ = *started;
  }
  absl::Status StartError(const ProgramEnvironmentOptions& options) {
    return MakeProgramEnvironment(options)->Start().status();
  }
  // Error of `attempt` that contains `end`, which is how a process ended. An error has it only if the process is reaped
  // soon after its last output, so a loaded machine needs several attempts.
  static absl::Status ErrorWithEnd(const std::function<absl::Status()>& attempt, absl::string_view end) {
    absl::Status error;
    EXPECT_TRUE(Eventually([&] {
      error = attempt();
      return absl::StrContains(error.message(), end);
    })) << error;
    return error;
  }
  // Calls `attempt` with longer and longer timeouts, until it returns true: the timeout was long enough for all that
  // must happen in time.
  static void WithLongerTimeouts(ProgramEnvironmentOptions options,
                                 const std::function<bool(const ProgramEnvironmentOptions&)>& attempt) {
    for (options.timeout = absl::Milliseconds(300); !attempt(options); options.timeout *= 4) {
      ASSERT_LT(options.timeout, kPatience);
    }
  }
  static bool IsLate(const Event& event) { return absl::IsDeadlineExceeded(event.what.status()); }
  void Reset(EpisodeId episode) { environment_->Reset(episode, 100 + episode, {.prompt = absl::StrCat("p", episode)}); }

  // The next events of as many episodes.
  std::map<EpisodeId, Event> Next(size_t count) {
    std::map<EpisodeId, Event> all;
    while (all.size() < count) {
      absl::StatusOr<std::vector<Event>> events = environment_->Wait(absl::Now() + kPatience);
      EXPECT_TRUE(events.ok()) << events.status();
      if (!events.ok()) break;
      for (Event& event : *events) {
        EXPECT_FALSE(all.contains(event.episode)) << event.episode;
        all.emplace(event.episode, std::move(event));
      }
    }
    return all;
  }
  Event NextOf(EpisodeId episode) {
    std::map<EpisodeId, Event> events = Next(1);
    EXPECT_THAT(events, Contains(testing::Key(episode)));
    return events.empty() ? Event{.episode = 0, .what = absl::UnknownError("none")} : events.begin()->second;
  }
  // What this episode, which alone is played, ends with.
  absl::Status ErrorOf(EpisodeId episode) {
    for (;;) {
      const absl::StatusOr<std::vector<Event>> events = environment_->Wait(absl::Now() + kPatience);
      if (!events.ok()) return Annotate(events.status(), "no error");
      for (const Event& event : *events) {
        EXPECT_EQ(event.episode, episode);
        if (!event.what.ok()) return event.what.status();
      }
    }
  }
  static Observation Observed(const Event& event) {
    EXPECT_TRUE(event.what.ok()) << event.what.status();
    return event.what.ok() ? std::get<Observation>(*event.what) : Observation();
  }
  static std::string Said(const Event& event) {
    const Observation observation = Observed(event);
    return observation.messages.empty() ? "" : observation.messages[0].content;
  }
  std::vector<std::string> Log() {
    MutexLock lock(mu_);
    return log_;
  }

  std::string folder_;
  Environment::Description description_;

 private:
  Mutex mu_;
  std::vector<std::string> log_ TDOCK_GUARDED_BY(mu_);

 protected:
  std::unique_ptr<Environment> environment_;  // ends before what its last lines go to
};

TEST_F(ProgramEnvironmentTest, PlaysAnEpisode) {
  Start(
      Program("hello(tools=[{'type': 'function', 'function': {'name': 'look'}}])\n"
              "tell(greeting)\nserve()"));
  EXPECT_EQ(description_.tools, R"([{"function":{"name":"look"},"type":"function"}])");
  EXPECT_FALSE(description_.is_agent);
  Reset(7);
  EXPECT_EQ(Said(NextOf(7)), "p7 of seed 107");
  environment_->Step(7, Says("on"));
  const Observation middle = Observed(NextOf(7));
  EXPECT_THAT(middle.rewards, ElementsAre(Pair("length", 2)));
  EXPECT_FALSE(middle.done);
  environment_->Step(7, Says("stop"));
  const Observation last = Observed(NextOf(7));
  EXPECT_TRUE(last.done);
  EXPECT_THAT(last.messages, ElementsAre(text::Turn{.role = text::Role::kUser, .content = "you said stop"}));
  environment_->Step(7, Says("on"));  // it is over
  Reset(8);
  EXPECT_EQ(Said(NextOf(8)), "p8 of seed 108");
  EXPECT_THAT(Log(), Contains(Mentions({"environment test: ", "columns: [level]", "model: /models/small"})));
}

TEST_F(ProgramEnvironmentTest, AnEpisodeThatALimitEndsIsAskedForItsRewards) {
  Start(Program(R"(
hello(concludes=True)
observe(read(), "go", continues=True)
message = read()
say(type="observation", episode=message["episode"], rewards={message["type"]: 0.5})
)"));
  EXPECT_TRUE(description_.concludes);
  Reset(1);
  EXPECT_TRUE(Observed(NextOf(1)).continues);
  environment_->Conclude(1);
  const Observation last = Observed(NextOf(1));
  EXPECT_TRUE(last.truncated);
  EXPECT_THAT(last.rewards, ElementsAre(Pair("conclude", 0.5)));
  // The program ends, and this episode is over.
  EXPECT_THAT(environment_->Wait(absl::Now() + absl::Milliseconds(200)).status(), Fails(StatusCode::kDeadlineExceeded));
}

TEST_F(ProgramEnvironmentTest, TheRowAndTheMessageArriveWhole) {
  Start(
      Program("hello()\nr = read()\nobserve(r, json.dumps(r['row']))\ns = read()\n"
              "observe(s, json.dumps(s['message']))\nserve()"));
  environment_->Reset(1, 5,
                      {.prompt = "p",
                       .messages = {{.role = text::Role::kUser, .content = "q"}},
                       .prompt_ids = {3, 4},
                       .truth = "t",
                       .source = "s",
                       .columns = {{"level", "2"}}});
  EXPECT_EQ(Said(NextOf(1)),
            R"({"columns": {"level": "2"}, "messages": [{"content": "q", "role": "user"}], "prompt": "p", )"
            R"("prompt_ids": [3, 4], "source": "s", "truth": "t"})");
  environment_->Step(1, {.role = text::Role::kAssistant,
                         .content = "",
                         .has_content = false,
                         .fields = R"({"tool_calls":[{"id":"call_0"}]})"});
  EXPECT_EQ(Said(NextOf(1)), R"({"content": null, "role": "assistant", "tool_calls": [{"id": "call_0"}]})");
}

TEST_F(ProgramEnvironmentTest, EpisodesGoOnAtTheSameTimeInSeveralProcesses) {
  // Each answers only once it plays three, and the last one first.
  ProgramEnvironmentOptions options = Program(
      "hello(episodes=3)\nwhile True:\n  three = [read() for i in range(3)]\n"
      "  for m in reversed(three):\n    if m['type'] != 'end': observe(m, str(os.getpid()))");
  options.processes = 2;
  Start(options);
  for (EpisodeId episode = 1; episode <= 6; ++episode) Reset(episode);
  std::map<std::string, int> processes;
  for (const auto& [episode, event] : Next(6)) ++processes[Said(event)];
  EXPECT_THAT(processes, ElementsAre(Pair(testing::_, 3), Pair(testing::_, 3)));
}

TEST_F(ProgramEnvironmentTest, EpisodesWaitForAFreeProcess) {
  Start(Program("hello()\nserve()"));
  for (EpisodeId episode = 1; episode <= 3; ++episode) Reset(episode);
  EXPECT_EQ(Said(NextOf(1)), "p1 of seed 101");
  EXPECT_THAT(environment_->Wait(absl::InfinitePast()).status(),
              Fails(StatusCode::kDeadlineExceeded, {"test", "3 episodes"}));
  environment_->Step(1, Says("stop"));
  const std::map<EpisodeId, Event> events = Next(2);
  EXPECT_TRUE(Observed(events.at(1)).done);
  EXPECT_EQ(Said(events.at(2)), "p2 of seed 102");
  environment_->End(3);
  environment_->End(2);
  Reset(4);
  EXPECT_EQ(Said(NextOf(4)), "p4 of seed 104");
}

TEST_F(ProgramEnvironmentTest, AProgramThatDoesNotStartIsSaidWithItsReason) {
  ProgramEnvironmentOptions missing = Program("");
  missing.arguments = {"/nowhere/game"};
  EXPECT_THAT(StartError(missing), Fails(StatusCode::kNotFound, {"test", "/nowhere/game"}));
  const ProgramEnvironmentOptions unlicensed = Program("print('no license', file=sys.stderr)\nsys.exit(3)");
  EXPECT_THAT(ErrorWithEnd([&] { return StartError(unlicensed); }, "code 3"),
              Fails(StatusCode::kUnavailable, {"test", "code 3", "no license"}));
  EXPECT_THAT(StartError(Program("print('Welcome')")), Fails(StatusCode::kInvalidArgument, {"Welcome"}));
  EXPECT_THAT(StartError(Program("read()\nsay(type='hello', protocol=2)")),
              Fails(StatusCode::kInvalidArgument, {"protocol is 2", "must be 1"}));
  EXPECT_THAT(StartError(Program("read()\nsay(type='hello', error='no such class')")),
              Fails(StatusCode::kInvalidArgument, {"no such class"}));
  ProgramEnvironmentOptions silent = Program("time.sleep(86400)");
  silent.start_timeout = absl::Milliseconds(50);
  EXPECT_THAT(StartError(silent), Fails(StatusCode::kDeadlineExceeded, {"environment.start_timeout"}));
}

TEST_F(ProgramEnvironmentTest, AnErrorOfAnEpisodeIsItsOwn) {
  Start(
      Program("hello(episodes=2)\ndef fail(m): say(type='observation', episode=m['episode'], error='no map')\n"
              "while True:\n  m = read()\n  fail(m) if m['episode'] == 1 else observe(m, str(os.getpid()))"));
  Reset(2);
  const std::string process = Said(NextOf(2));
  Reset(1);
  EXPECT_THAT(NextOf(1).what.status(), Fails(StatusCode::kUnknown, {"no map"}));
  environment_->Step(2, Says("on"));
  EXPECT_EQ(Said(NextOf(2)), process);
}

TEST_F(ProgramEnvironmentTest, AProcessThatDiesTakesItsEpisodesWithIt) {
  Start(
      Program("hello(episodes=2)\nplay(read())\nplay(read())\n"
              "if once('dead'):\n  read()\n  print('bye', file=sys.stderr)\n  sys.exit(4)\nserve()"));
  Reset(1);
  Reset(2);
  Next(2);
  environment_->Step(1, Says("on"));
  const std::map<EpisodeId, Event> events = Next(2);
  for (const EpisodeId episode : {1, 2}) {
    EXPECT_THAT(events.at(episode).what.status(), Fails(StatusCode::kUnavailable, {"bye"}));
  }
  environment_->Step(2, Says("on"));  // it is over
  Reset(3);
  EXPECT_EQ(Said(NextOf(3)), "p3 of seed 103");
  EXPECT_THAT(Log(), Contains(Mentions({"environment test: ", "failed", "bye"})));
}

TEST_F(ProgramEnvironmentTest, AForgottenEpisodeCostsTheProcessItsLife) {
  const ProgramEnvironmentOptions forgetful =
      Program("hello(episodes=2)\nwhile True:\n  m = read()\n  if m['episode'] != 2 or not once('forgot'): play(m)");
  WithLongerTimeouts(forgetful, [&](const ProgramEnvironmentOptions& options) {
    std::filesystem::remove(folder_ + "/forgot");
    Start(options);
    Reset(1);
    if (IsLate(NextOf(1))) return false;
    Reset(2);
    const std::map<EpisodeId, Event> events = Next(2);
    EXPECT_THAT(events.at(2).what.status(),
                Fails(StatusCode::kDeadlineExceeded,
                      {"episode 2", absl::FormatDuration(options.timeout), "environment.timeout"}));
    EXPECT_THAT(events.at(1).what.status(), Fails(StatusCode::kAborted, {"another episode", "episode 2"}));
    Reset(3);
    const Event next = NextOf(3);
    if (IsLate(next)) return false;
    EXPECT_EQ(Said(next), "p3 of seed 103");
    return true;
  });
}

TEST_F(ProgramEnvironmentTest, WhatWasSaidInTimeCountsHoweverLateItIsRead) {
  // Longer than a pipe: the program has written only its beginning while nobody reads.
  const ProgramEnvironmentOptions verbose = Program(R"(
hello()
read()
line = json.dumps({"type": "observation", "episode": 1, "messages": [{"role": "user", "content": "x" * 1000000}]})
sys.stdout.write(line[:1000])
sys.stdout.flush()
open(F + "begun", "w").close()
print(line[1000:], flush=True)
serve()
)");
  WithLongerTimeouts(verbose, [&](const ProgramEnvironmentOptions& options) {
    std::filesystem::remove(folder_ + "/begun");
    Start(options);
    Reset(1);
    const absl::Time late = absl::Now() + options.timeout;
    EXPECT_TRUE(Eventually([&] { return std::filesystem::exists(folder_ + "/begun") && absl::Now() >= late; }));
    const Event event = NextOf(1);
    if (IsLate(event)) return false;  // the rest has as long once more
    EXPECT_THAT(Said(event), SizeIs(1000000));
    return true;
  });
}

TEST_F(ProgramEnvironmentTest, WhatIsNotOfTheProtocolEndsTheProcess) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> said = {
      {"print('moves: 3', flush=True)", {"moves: 3"}},
      {"sys.stdout.write('x' * (17 << 20))", {"16 MiB", "xxx"}},
      {"say(type='observation', episode=99)", {"episode 99"}},
      {"observe(m, 'a'); observe(m, 'b')", {"observation", "episode 1"}},
      {"observe(m, 'a', rewards={'r': float('inf')})", {"it wrote", "protocol"}},
      {"observe(m, 'a', rewards={'r': 'much'})", {"reward \"r\"", "much", "a number"}},
      {"observe(m, 'a', done='yes')", {"\"done\"", "yes", "true"}},
      {"say(type='observation', episode=1, messages=[{'role': 'assistant', 'content': 'I'}])",
       {"\"role\"", "assistant", "\"user\""}},
      {"say(type='observation', episode=1, messages=[{'role': 'user', **{str(i): i for i in range(5000)}}])",
       {"message", "4096"}},
      {"say(type='generate', episode=1, request=0, prompt_ids=[1])", {"generate", "environment (\"observation\")"}},
  };
  const auto error = [&](absl::string_view what) {
    Start(Program(absl::StrCat("hello()\nm = read()\n", what, "\nserve()")));
    Reset(1);
    return ErrorOf(1);
  };
  for (const auto& [what, names] : said) {
    EXPECT_THAT(error(what), Fails(StatusCode::kInvalidArgument, names)) << what;
  }
  EXPECT_THAT(error("os.close(1); time.sleep(86400)"), Fails(StatusCode::kUnavailable, {"standard output"}));
}

TEST_F(ProgramEnvironmentTest, TooMuchMemoryEndsTheProcess) {
  ProgramEnvironmentOptions options = Program("hello()\nread()\nkept = bytearray(1 << 28)\ntime.sleep(86400)");
  options.memory_bytes = 100 << 20;
  const auto error = [&] {
    Start(options);
    Reset(1);
    return NextOf(1).what.status();
  };
  EXPECT_THAT(ErrorWithEnd(error, " MiB of "), Fails(StatusCode::kUnavailable, {" MiB of ", "memory"}));
}

TEST_F(ProgramEnvironmentTest, AProgramThatFailsAgainAndAgainEndsTheEnvironment) {
  ProgramEnvironmentOptions options = Program("hello()\nread()\nsys.exit('out of maps')");
  options.max_restarts = 2;
  Start(options);
  absl::StatusOr<std::vector<Event>> events = std::vector<Event>();
  EpisodeId episode = 0;
  for (; events.ok() && episode < 10; events = environment_->Wait(absl::Now() + kPatience)) Reset(++episode);
  EXPECT_EQ(episode, 4U);
  const auto fails = Fails(StatusCode::kUnavailable, {"test", "3 times", "environment.max_restarts", "out of maps"});
  EXPECT_THAT(events.status(), fails);
  EXPECT_THAT(environment_->Wait(absl::InfinitePast()).status(), fails);
}

TEST_F(ProgramEnvironmentTest, WhatComesOfAnEndedEpisodeMeansNothing) {
  Start(Program("hello(episodes=2)\nfirst = read()\nend = read()\nobserve(first, 'late ' + end['type'])\nserve()"));
  Reset(1);
  environment_->End(1);
  Reset(2);
  EXPECT_EQ(Said(NextOf(2)), "p2 of seed 102");
}

TEST_F(ProgramEnvironmentTest, AMessageThatIsTooLongIsAnErrorOfItsEpisode) {
  Start(Program("hello()\nserve()"));
  environment_->Reset(1, 0, {.prompt = std::string(17 << 20, 'x')});
  EXPECT_THAT(NextOf(1).what.status(), Fails(StatusCode::kInvalidArgument, {"the row", "17825"}));
  Reset(2);
  NextOf(2);
  environment_->Step(2, Says(std::string(17 << 20, 'x')));
  EXPECT_THAT(NextOf(2).what.status(), Fails(StatusCode::kInvalidArgument, {"the message", "17825"}));
}

class UrlAgentTest : public ProgramEnvironmentTest {
 protected:
  // A program that gets a run, and does this once it is answered.
  ProgramEnvironmentOptions Agent(const std::string& script) {
    ProgramEnvironmentOptions options = Program(absl::StrCat(R"(
hello(kind="client")
run = read()
tell([run["base_url"], run["api_key"], run["model"]])
while not os.path.exists(F + "answered"): time.sleep(0.005)
)",
                                                             script, "\nread()\n"));
    options.setup.endpoints = [this]() -> absl::StatusOr<std::unique_ptr<EpisodeEndpoints>> {
      auto made = std::make_unique<OneRequest>();
      endpoints_ = made.get();
      return made;
    };
    return options;
  }
  void AnswerItsRequest() {
    Reset(1);
    const Event asked = NextOf(1);
    ASSERT_TRUE(asked.what.ok()) << asked.what.status();
    EXPECT_EQ(std::get<ChatRequest>(*asked.what).request, 4);
    environment_->Answer(1, 4, Generated{});
    EXPECT_THAT(endpoints_->answered, ElementsAre(4));
    std::ofstream(folder_ + "/answered") << "yes";
  }

  OneRequest* endpoints_ = nullptr;  // the environment's
};

TEST_F(UrlAgentTest, GetsAnEndpointForEachEpisodeWhichEndsWithIt) {
  Start(Agent("say(type='observation', episode=run['episode'], rewards={'right': 1}, done=True)"));
  EXPECT_TRUE(description_.is_client);
  EXPECT_FALSE(description_.is_agent);
  AnswerItsRequest();
  const Observation last = Observed(NextOf(1));
  EXPECT_TRUE(last.done);
  EXPECT_THAT(last.rewards, ElementsAre(Pair("right", 1)));
  EXPECT_THAT(endpoints_->closed, ElementsAre(1));
  const auto logged = Contains(Mentions({"http://here/1", "secret", "small"}));
  EXPECT_TRUE(Eventually([&] {
    environment_->Wait(absl::InfinitePast()).IgnoreError();  // reads what the program writes
    return testing::Value(Log(), logged);
  }));
}

TEST_F(UrlAgentTest, MayOnlySayThatItIsDone) {
  Start(Agent("say(type='observation', episode=run['episode'])"));
  AnswerItsRequest();
  EXPECT_THAT(ErrorOf(1), Fails(StatusCode::kInvalidArgument, {"episode 1", "\"done\""}));
  EXPECT_THAT(endpoints_->closed, ElementsAre(1));
}

TEST_F(UrlAgentTest, CannotBeWhereNothingServesEndpoints) {
  ProgramEnvironmentOptions options = Agent("");
  options.setup.endpoints = {};
  EXPECT_THAT(StartError(options), Fails(StatusCode::kFailedPrecondition, {"test", "URL"}));
}

TEST_F(UrlAgentTest, GivenUpItsEndpointIsClosed) {
  Start(Agent(""));
  AnswerItsRequest();
  environment_->End(1);
  EXPECT_THAT(endpoints_->closed, ElementsAre(1));
}

TEST_F(ProgramEnvironmentTest, AnAgentAsksForTokensAndGivesWhatIsTrained) {
  ProgramEnvironmentOptions options = Program(R"(
hello(kind="agent")
run = read()
ids = run["row"]["prompt_ids"]
for request in (0, 1):
    say(type="generate", episode=run["episode"], request=request, prompt_ids=ids + [request], max_tokens=4)
answers = sorted((read() for request in (0, 1)), key=lambda answer: answer["request"])
tell([run["sampling"], answers])
say(type="output", episode=run["episode"], prompt_ids=ids, response_ids=answers[0]["token_ids"] + [9],
    response_mask=[1, 1, 0], rewards={"reward": 0.5})
read()
)");
  options.setup.temperature = 0.5;
  options.setup.max_tokens = 64;
  Start(options);
  EXPECT_TRUE(description_.is_agent);
  environment_->Reset(3, 1, {.prompt = "p", .prompt_ids = {5}});
  std::vector<GenerateRequest> asked;
  while (asked.size() < 2) {
    const auto events = environment_->Wait(absl::Now() + kPatience);
    ASSERT_TRUE(events.ok()) << events.status();
    for (const Event& event : *events) asked.push_back(std::get<GenerateRequest>(*event.what));
  }
  EXPECT_EQ(asked[1].request, 1);
  EXPECT_EQ(asked[1].prompt_ids, (std::vector<int32_t>{5, 1}));
  EXPECT_EQ(asked[1].max_tokens, 4);
  environment_->Answer(3, 1, absl::ResourceExhaustedError("no room"));
  environment_->Answer(
      3, 0, Generated{.token_ids = {7, 8}, .log_probs = {-0.5F, -1}, .stop_reason = "length", .weights_version = 3});
  const Event event = NextOf(3);
  ASSERT_TRUE(event.what.ok()) << event.what.status();
  const auto& output = std::get<AgentOutput>(*event.what);
  EXPECT_EQ(output.response_ids, (std::vector<int32_t>{7, 8, 9}));
  EXPECT_EQ(output.response_mask, (std::vector<uint8_t>{1, 1, 0}));
  EXPECT_THAT(output.rewards, ElementsAre(Pair("reward", 0.5)));
  const auto logged = Contains(Mentions({"max_tokens: 64, temperature: 0.5", "no room", "weights_version: 3"}));
  EXPECT_TRUE(Eventually([&] {
    environment_->Wait(absl::InfinitePast()).IgnoreError();  // reads what the program writes
    return testing::Value(Log(), logged);
  }));
}

TEST_F(ProgramEnvironmentTest, AnAgentIsHeldToWhatItWasGiven) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> said = {
      {"for i in (1, 2): say(type='generate', episode=1, request=0, prompt_ids=[1])",
       {"episode 1", "number 0", "request"}},
      {"say(type='generate', episode=1, request=0, prompt_ids=[])", {"\"prompt_ids\"", "[]"}},
      {"say(type='generate', episode=1, request=-1, prompt_ids=[1])", {"\"request\"", "-1", "whole number"}},
      {"say(type='output', episode=1, prompt_ids=[1], response_ids=[2], response_mask=[])",
       {"\"response_mask\"", "[]", "\"response_ids\""}},
      {"say(type='output', episode=1, prompt_ids=[1], response_ids=[2], response_mask=[2])",
       {"\"response_mask\" is 2", "0 or 1"}},
      {"say(type='output', episode=1, prompt_ids=[1], response_ids=[1.5], response_mask=[1])",
       {"\"response_ids\"", "1.5", "whole number"}},
      {"observe(m, 'a')", {"\"observation\"", "agent"}},
  };
  for (const auto& [what, names] : said) {
    Start(Program(absl::StrCat("hello(kind='agent')\nm = read()\n", what, "\nserve()")));
    Reset(1);
    EXPECT_THAT(ErrorOf(1), Fails(StatusCode::kInvalidArgument, names)) << what;
  }
}

}  // namespace
}  // namespace tdock::environment
