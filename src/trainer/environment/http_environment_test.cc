#include "trainer/environment/http_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/mutex.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "nlohmann/json.hpp"
#include "trainer/environment/testing/one_request.h"

namespace tdock::environment {
namespace {

using absl::StatusCode;
using Json = nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// A server on the loopback interface. `answer` gets the message of a request, and gives the answer from its status line
// on; it is called by one thread for each connection.
class GameServer {
 public:
  using Answer = std::function<std::string(const Json& message)>;

  explicit GameServer(Answer answer) : answer_(std::move(answer)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 64), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    accepting_ = std::thread([this] { Accept(); });
  }
  ~GameServer() {
    ::shutdown(listener_, SHUT_RDWR);
    accepting_.join();
    for (std::thread& thread : threads_) thread.join();
    ::close(listener_);
  }

  std::string url() const { return absl::StrCat("http://127.0.0.1:", port_, "/play?key=secret"); }
  std::vector<std::string> requests() {
    MutexLock lock(mu_);
    return requests_;
  }

 private:
  void Accept() {
    for (;;) {
      const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (socket < 0) return;
      threads_.emplace_back([this, socket] {
        const std::string request = Read(socket);
        {
          MutexLock lock(mu_);
          requests_.push_back(request);
        }
        const size_t head = request.find("\r\n\r\n");
        if (head == std::string::npos) {  // the client has cut it
          ::close(socket);
          return;
        }
        const std::string answer = answer_(Json::parse(request.substr(head + 4)));
        (void)!::send(socket, answer.data(), answer.size(), MSG_NOSIGNAL);
        ::shutdown(socket, SHUT_WR);
        char rest[4096];
        while (::recv(socket, rest, sizeof rest, 0) > 0) continue;
        ::close(socket);
      });
    }
  }
  static std::string Read(int socket) {
    std::string all;
    char chunk[4096];
    for (;;) {
      const size_t head = all.find("\r\n\r\n");
      const size_t field = all.find("Content-Length: ");
      size_t body = 0;
      if (head != std::string::npos && field != std::string::npos &&
          absl::SimpleAtoi(all.substr(field + 16, all.find('\r', field) - field - 16), &body) &&
          all.size() >= head + 4 + body) {
        return all;
      }
      const ssize_t got = ::recv(socket, chunk, sizeof chunk, 0);
      if (got <= 0) return all;
      all.append(chunk, static_cast<size_t>(got));
    }
  }

  const Answer answer_;
  int listener_ = -1, port_ = 0;
  std::thread accepting_;
  std::vector<std::thread> threads_;
  Mutex mu_;
  std::vector<std::string> requests_ TDOCK_GUARDED_BY(mu_);
};

std::string Reply(const std::string& head, const std::string& body) {
  return absl::StrCat("HTTP/1.1 ", head, "\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
}
std::string Ok(const Json& message) { return Reply("200 OK", message.dump()); }
std::string Hello() { return Ok({{"type", "hello"}, {"protocol", 1}}); }
std::string Observe(const Json& asked, const std::string& text, bool done = false) {
  return Ok({{"type", "observation"},
             {"episode", asked["episode"]},
             {"messages", {{{"role", "user"}, {"content", text}}}},
             {"done", done}});
}
// Says what it was given, until the model says "stop".
std::string Play(const Json& asked) {
  if (asked["type"] == "hello") return Hello();
  if (asked["type"] == "reset") return Observe(asked, asked["row"]["prompt"]);
  if (asked["type"] == "end") return Ok(Json::object());
  const std::string said = asked["message"]["content"];
  return Observe(asked, "you said " + said, said == "stop");
}

class HttpEnvironmentTest : public testing::Test {
 protected:
  static text::Turn Says(const std::string& text) { return {.role = text::Role::kAssistant, .content = text}; }
  static HttpEnvironmentOptions Options(const GameServer& server) {
    HttpEnvironmentOptions options{.url = server.url()};
    options.timeout = kNever;
    options.start_timeout = kNever;
    return options;
  }
  void Start(const HttpEnvironmentOptions& options) {
    auto made = MakeHttpEnvironment(options);
    ASSERT_TRUE(made.ok()) << made.status();
    environment_ = *std::move(made);
    const auto started = environment_->Start();
    ASSERT_TRUE(started.ok()) << started.status();
  }
  static absl::Status StartError(const HttpEnvironmentOptions& options) {
    auto made = MakeHttpEnvironment(options);
    return made.ok() ? (*made)->Start().status() : made.status();
  }
  void Reset(EpisodeId episode) { environment_->Reset(episode, 1, {.prompt = absl::StrCat("p", episode)}); }
  std::map<EpisodeId, Event> Next(size_t count) {
    std::map<EpisodeId, Event> all;
    while (all.size() < count) {
      auto events = environment_->Wait(absl::Now() + kPatience);
      EXPECT_TRUE(events.ok()) << events.status();
      if (!events.ok()) break;
      for (Event& event : *events) all.emplace(event.episode, std::move(event));
    }
    return all;
  }
  absl::Status ErrorOf(EpisodeId episode) {
    const auto events = Next(1);
    return events.contains(episode) ? events.at(episode).what.status() : absl::NotFoundError("no such event");
  }
  static std::string Said(const Event& event) {
    EXPECT_TRUE(event.what.ok()) << event.what.status();
    return event.what.ok() ? std::get<Observation>(*event.what).messages.at(0).content : "";
  }

  std::unique_ptr<Environment> environment_;
};

TEST_F(HttpEnvironmentTest, PlaysEpisodesAtTheSameTime) {
  // Nobody is answered before all have asked.
  std::atomic<int> waiting = 0;
  GameServer server([&](const Json& asked) {
    if (asked["type"] == "reset") {
      ++waiting;
      while (waiting < 3) std::this_thread::yield();
    }
    return Play(asked);
  });
  HttpEnvironmentOptions options = Options(server);
  options.connections = 3;
  Start(options);
  EXPECT_THAT(environment_->name(), HasSubstr("/play"));
  for (EpisodeId episode = 1; episode <= 3; ++episode) Reset(episode);
  for (const auto& [episode, event] : Next(3)) EXPECT_EQ(Said(event), absl::StrCat("p", episode));
  environment_->Step(2, Says("stop"));
  EXPECT_TRUE(std::get<Observation>(*Next(1).at(2).what).done);
  environment_->Step(2, Says("on"));  // it is over
  environment_->Step(1, Says("on"));
  EXPECT_EQ(Said(Next(1).at(1)), "you said on");
}

TEST_F(HttpEnvironmentTest, AnEpisodeIsOverWithTheAnswerToItsConclusion) {
  GameServer server(
      [&](const Json& asked) { return asked["type"] == "conclude" ? Observe(asked, "at last") : Play(asked); });
  Start(Options(server));
  Reset(1);
  Next(1);
  environment_->Conclude(1);
  EXPECT_TRUE(std::get<Observation>(*Next(1).at(1).what).truncated);
  environment_->Step(1, Says("on"));
  EXPECT_THAT(environment_->Wait(absl::Now() + absl::Milliseconds(200)).status(), Fails(StatusCode::kDeadlineExceeded));
}

// A server that is an agent of a URL, and answers a run once it may.
class HttpUrlAgentTest : public HttpEnvironmentTest {
 protected:
  ~HttpUrlAgentTest() override {
    may_end_ = true;
    environment_.reset();
  }
  std::string Run(const Json& asked) {
    if (asked["type"] == "hello") return Ok({{"type", "hello"}, {"protocol", 1}, {"kind", "client"}});
    if (asked["type"] == "end") return Ok(Json::object());
    EXPECT_EQ(asked["type"], "run");
    EXPECT_EQ(asked["base_url"], "http://here/1");
    EXPECT_EQ(asked["api_key"], "secret");
    while (!may_end_) std::this_thread::yield();
    return Ok({{"type", "observation"}, {"episode", asked["episode"]}, {"rewards", {{"right", 1}}}, {"done", true}});
  }
  HttpEnvironmentOptions Agent() {
    HttpEnvironmentOptions options = Options(server_);
    options.setup.endpoints = [this]() -> absl::StatusOr<std::unique_ptr<EpisodeEndpoints>> {
      auto made = std::make_unique<OneRequest>();
      endpoints_ = made.get();
      return made;
    };
    return options;
  }
  void AnswerItsRequest() {
    Reset(1);
    const auto events = Next(1);
    ASSERT_TRUE(events.at(1).what.ok()) << events.at(1).what.status();
    EXPECT_EQ(std::get<ChatRequest>(*events.at(1).what).request, 4);
    environment_->Answer(1, 4, Generated{});
    EXPECT_THAT(endpoints_->answered, testing::ElementsAre(4));
  }

  std::atomic<bool> may_end_ = false;
  GameServer server_{[this](const Json& asked) { return Run(asked); }};
  OneRequest* endpoints_ = nullptr;  // the environment's
};

TEST_F(HttpUrlAgentTest, EndsItsEpisodeWithTheAnswerToItsRun) {
  Start(Agent());
  AnswerItsRequest();
  may_end_ = true;
  const auto events = Next(1);
  EXPECT_THAT(std::get<Observation>(*events.at(1).what).rewards, testing::ElementsAre(testing::Pair("right", 1)));
  EXPECT_THAT(endpoints_->closed, testing::ElementsAre(1));
}

TEST_F(HttpUrlAgentTest, HasItsTimeAgainAfterEachReply) {
  HttpEnvironmentOptions options = Agent();
  options.timeout = absl::Milliseconds(100);
  Start(options);
  AnswerItsRequest();
  EXPECT_THAT(ErrorOf(1), Fails(StatusCode::kDeadlineExceeded, {"environment.timeout"}));
  may_end_ = true;
}

TEST_F(HttpUrlAgentTest, IsRefusedWhereNothingServesEndpoints) {
  HttpEnvironmentOptions options = Agent();
  options.setup.endpoints = {};
  EXPECT_THAT(StartError(options), Fails(StatusCode::kFailedPrecondition, {"URL"}));
}

TEST_F(HttpEnvironmentTest, RunsHaveNumbersOfTheirOwnForEpisodes) {
  GameServer server(Play);
  std::set<uint64_t> numbers;
  for (int run = 0; run < 2; ++run) {
    Start(Options(server));
    Reset(1);
    Next(1);
  }
  for (const std::string& request : server.requests()) {
    const Json asked = Json::parse(request.substr(request.find("\r\n\r\n") + 4));
    if (asked["type"] == "reset") numbers.insert(asked["episode"].get<uint64_t>());
  }
  EXPECT_EQ(numbers.size(), 2U);
  EXPECT_LT(*numbers.rbegin(), uint64_t{1} << 53);
}

TEST_F(HttpEnvironmentTest, SendsTheTokenAndNeverShowsIt) {
  ::setenv("HTTP_ENVIRONMENT_TEST_TOKEN", "abc123", 1);
  GameServer server(
      [](const Json& asked) { return asked["type"] == "hello" ? Hello() : Reply("403 Forbidden", "not with abc123"); });
  HttpEnvironmentOptions options = Options(server);
  options.token_env = "HTTP_ENVIRONMENT_TEST_TOKEN";
  Start(options);
  Reset(1);
  const absl::Status error = ErrorOf(1);
  EXPECT_THAT(error, Fails(StatusCode::kFailedPrecondition, {"/play: ", "code 403", "(token)"}));
  EXPECT_THAT(error.message(), Not(HasSubstr("secret")));
  EXPECT_THAT(server.requests().at(0), HasSubstr("Authorization: Bearer abc123"));
  options.token_env = "HTTP_ENVIRONMENT_TEST_UNSET";
  EXPECT_THAT(StartError(options),
              Fails(StatusCode::kInvalidArgument, {"environment.url_token_env", "HTTP_ENVIRONMENT_TEST_UNSET"}));
}

TEST_F(HttpEnvironmentTest, AServerThatIsNotReadyIsAskedAgain) {
  std::atomic<int> asked_times = 0;
  GameServer server([&](const Json& asked) {
    if (asked["type"] != "end" && asked_times++ % 2 == 0) return Reply("503 Service Unavailable", "");
    return Play(asked);
  });
  Start(Options(server));
  Reset(1);
  EXPECT_EQ(Said(Next(1).at(1)), "p1");
  environment_->Step(1, Says("on"));
  EXPECT_EQ(Said(Next(1).at(1)), "you said on");
  EXPECT_EQ(asked_times, 6);
}

TEST_F(HttpEnvironmentTest, AStepThatMayHaveBeenTakenIsNotRepeated) {
  std::atomic<int> steps = 0;
  GameServer server([&](const Json& asked) {
    if (asked["type"] != "step") return Play(asked);
    ++steps;
    return std::string("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{");
  });
  Start(Options(server));
  Reset(1);
  Next(1);
  environment_->Step(1, Says("on"));
  EXPECT_THAT(ErrorOf(1), Fails(StatusCode::kUnavailable, {"/play: ", "closed"}));
  EXPECT_EQ(steps, 1);
}

TEST_F(HttpEnvironmentTest, WhatIsNotOfTheProtocolIsAnErrorOfTheEpisode) {
  std::string answer;
  GameServer server([&](const Json& asked) { return asked["type"] == "reset" ? answer : Play(asked); });
  HttpEnvironmentOptions options = Options(server);
  options.max_failures = 100;
  Start(options);
  struct Case {
    std::string said;
    StatusCode code;
    std::vector<std::string> names;
  };
  const std::vector<Case> answers = {
      {Reply("200 OK", "<html>"), StatusCode::kInvalidArgument, {"/play: ", "<html>"}},
      {Ok({{"type", "observation"}, {"episode", 5}}), StatusCode::kInvalidArgument, {"/play: ", "episode 5"}},
      {Ok({{"type", "output"}, {"episode", 5}}),
       StatusCode::kInvalidArgument,
       {"output", "environment (\"observation\")"}},
      {Reply("302 Found\r\nLocation: http://other/", ""),
       StatusCode::kFailedPrecondition,
       {"302", "http://other/", "environment.url"}},
      {Reply("500 Oh", "no map"), StatusCode::kUnavailable, {"code 500", "no map"}},
      {Reply("200 OK", std::string(17 << 20, 'x')), StatusCode::kResourceExhausted, {"16 MiB"}},
  };
  EpisodeId episode = 0;
  for (const Case& c : answers) {
    answer = c.said;
    Reset(++episode);
    EXPECT_THAT(ErrorOf(episode), Fails(c.code, c.names));
  }
}

TEST_F(HttpEnvironmentTest, AnEpisodeWithoutAnAnswerIsLateAndTheServerToldOfItsEnd) {
  // The message of the end has the same timeout. A loaded machine may need a longer one.
  bool was_told = false;
  for (absl::Duration timeout = absl::Milliseconds(100); !was_told && timeout < kPatience; timeout *= 4) {
    std::atomic<bool> told = false, over = false;
    GameServer server([&](const Json& asked) {
      if (asked["type"] == "end") told = true;
      while (asked["type"] == "reset" && !told && !over) std::this_thread::yield();
      return Play(asked);
    });
    HttpEnvironmentOptions options = Options(server);
    options.timeout = timeout;
    Start(options);
    Reset(1);
    EXPECT_THAT(ErrorOf(1), Fails(StatusCode::kDeadlineExceeded, {"/play: "}));
    for (const absl::Time end = absl::Now() + timeout; !told && absl::Now() < end;) std::this_thread::yield();
    was_told = told;
    environment_.reset();
    over = true;
  }
  EXPECT_TRUE(was_told);
}

TEST_F(HttpEnvironmentTest, AServerThatFailsAgainAndAgainEndsTheEnvironment) {
  GameServer server([](const Json& asked) { return asked["type"] == "reset" ? Reply("500 Oh", "") : Play(asked); });
  HttpEnvironmentOptions options = Options(server);
  options.max_failures = 2;
  Start(options);
  for (EpisodeId episode = 1; episode <= 3; ++episode) {
    Reset(episode);
    EXPECT_THAT(ErrorOf(episode), Fails(StatusCode::kUnavailable, {"code 500"}));
  }
  EXPECT_THAT(environment_->Wait(absl::Now() + kPatience).status(),
              Fails(StatusCode::kUnavailable, {"/play: ", "3 times", "environment.max_restarts", "code 500"}));
}

TEST_F(HttpEnvironmentTest, AServerThatDoesNotStartIsSaidWithItsReason) {
  GameServer agent([](const Json&) { return Ok({{"type", "hello"}, {"protocol", 1}, {"kind", "agent"}}); });
  EXPECT_THAT(StartError(Options(agent)),
              Fails(StatusCode::kInvalidArgument, {"/play: ", "an agent", "environment.program"}));
  HttpEnvironmentOptions options = Options(agent);
  options.url = "http://127.0.0.1:1/";
  // A loaded machine may not have asked once when the time is over.
  absl::Status refused;
  options.start_timeout = absl::Milliseconds(200);
  for (; options.start_timeout < kPatience; options.start_timeout *= 4) {
    refused = StartError(options);
    if (!absl::IsDeadlineExceeded(refused)) break;
  }
  EXPECT_THAT(refused, Fails(StatusCode::kUnavailable, {"127.0.0.1:1/", "server"}));
  options.url = "ftp://127.0.0.1/";
  EXPECT_EQ(StartError(options).code(), StatusCode::kInvalidArgument);
}

TEST_F(HttpEnvironmentTest, NobodyWaitsForAServerOnceItIsNoLongerUsed) {
  std::atomic<bool> asked_for = false, gone = false;
  GameServer server([&](const Json& asked) {
    if (asked["type"] == "reset") asked_for = true;
    while (asked["type"] == "reset" && !gone) std::this_thread::yield();
    return Play(asked);
  });
  Start(Options(server));
  Reset(1);
  while (!asked_for) std::this_thread::yield();
  environment_->End(1);
  environment_.reset();  // before the answer's timeout, which is kNever
  gone = true;
}

}  // namespace
}  // namespace tdock::environment
