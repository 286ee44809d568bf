#include "trainer/run_page/page_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/testing/patience.h"
#include "core/http/server.h"
#include "core/http/testing/raw_client.h"
#include "nlohmann/json.hpp"
#include "trainer/run_page/page_text.h"

namespace tdock::trainer {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

class PageServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = absl::StrCat(::testing::TempDir(), "page_server_",
                         ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(root_);
    AddRun("a");
    AddRun("b");
  }
  void TearDown() override {
    server_ = nullptr;
    std::filesystem::remove_all(root_);
  }
  void AddRun(const std::string& name) {
    std::filesystem::create_directories(absl::StrCat(root_, "/", name, "/tensorboard"));
    Append(name, "config.yaml", "recipe: grpo\n");
    Append(name, "metrics.jsonl", "{\"phase\":\"grpo\",\"step\":1,\"val/loss\":0.5}\n");
  }
  void Append(const std::string& run, const std::string& file, absl::string_view text) {
    const auto out = *Env::Real().OpenForWriting(absl::StrCat(root_, "/", run, "/", file), WriteMode::kAppend);
    ASSERT_TRUE(out->Append(text).ok());
  }
  void Start(const std::string& folder) {
    auto server = PageServer::Start(Env::Real(), {.folder = folder, .interval = absl::Milliseconds(20)});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  static std::string Head(const std::string& target, const std::string& more = "Host: localhost\r\n") {
    return absl::StrCat("GET ", target, " HTTP/1.1\r\n", more, "\r\n");
  }
  std::string Ask(const std::string& target, const std::string& more = "Host: localhost\r\n") {
    http::RawClient client(server_->port());
    client.Send(Head(target, more));
    return client.ReadResponse();
  }
  Json AskJson(const std::string& target) {
    const std::string answer = Ask(target);
    return Json::parse(answer.substr(answer.find("\r\n\r\n") + 4));
  }
  // The next event of this name: its data, with its id under "id".
  static Json NextEvent(http::RawClient& client, const std::string& name) {
    for (;;) {
      const std::string text = client.ReadUntil("\n\n");
      if (text.empty()) return nullptr;
      const size_t data = text.find("data: ");
      if (text.find("event: " + name + "\n") == std::string::npos) continue;
      Json event = Json::parse(text.substr(data + 6));
      const size_t id = text.find("id: ");
      if (id != std::string::npos) event["id"] = text.substr(id + 4, text.find('\n', id) - id - 4);
      return event;
    }
  }

  std::string root_;
  std::unique_ptr<PageServer> server_;
};

TEST_F(PageServerTest, ServesAPageThatMayOnlyRunItsOwnScript) {
  Start(root_);
  const std::string page = Ask("/");
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200"));
  const size_t nonce = page.find("script-src 'nonce-") + 18;
  const std::string value = page.substr(nonce, page.find('\'', nonce) - nonce);
  EXPECT_EQ(value.size(), 32);
  EXPECT_THAT(page, HasSubstr(absl::StrCat("<script nonce=\"", value, "\">")));
  EXPECT_THAT(page, HasSubstr("frame-ancestors 'none'"));
  EXPECT_THAT(page, Not(HasSubstr("{{")));
  for (const char* outside : {"https://", "src=\"", "@import", "url("}) EXPECT_THAT(page, Not(HasSubstr(outside)));
}

TEST_F(PageServerTest, TellsWhatIsNewWithoutBeingAsked) {
  Start(root_);
  http::RawClient client(server_->port());
  client.Send(Head("/events?run=a"));
  const Json first = NextEvent(client, "run");
  EXPECT_EQ(first["reset"], true);
  Append("a", "metrics.jsonl", "{\"phase\":\"grpo\",\"step\":2,\"val/loss\":0.25}\n");
  Json next = NextEvent(client, "run");
  while (!next.is_null() && next["phases"].empty()) next = NextEvent(client, "run");
  EXPECT_EQ(next["reset"], false);
  EXPECT_EQ(next["phases"][0]["series"][0]["from"], 1);
  EXPECT_EQ(next["phases"][0]["series"][0]["y"], Json::array({0.25}));
}

TEST_F(PageServerTest, AClientThatConnectsAgainGetsOnlyWhatItHasNotSeen) {
  Start(root_);
  std::string id;
  {
    http::RawClient client(server_->port());
    client.Send(Head("/events?run=a"));
    Json event = NextEvent(client, "run");
    while (!event.is_null() && event["phases"].empty()) event = NextEvent(client, "run");
    ASSERT_FALSE(event.is_null());
    id = event["id"];
  }
  Append("a", "metrics.jsonl", "{\"phase\":\"grpo\",\"step\":2,\"val/loss\":0.25}\n");
  http::RawClient again(server_->port());
  again.Send(Head("/events?run=a", absl::StrCat("Host: localhost\r\nLast-Event-ID: ", id, "\r\n")));
  Json event = NextEvent(again, "run");
  EXPECT_EQ(event["reset"], false);
  while (!event.is_null() && event["phases"].empty()) event = NextEvent(again, "run");
  EXPECT_EQ(event["phases"][0]["last_step"], 2);
  http::RawClient other(server_->port());
  other.Send(Head("/events?run=a", "Host: localhost\r\nLast-Event-ID: 00000000.7\r\n"));
  EXPECT_EQ(NextEvent(other, "run")["reset"], true) << "the id is another server's";
}

TEST_F(PageServerTest, ShowsAllRunsAndThoseThatBegin) {
  Start(root_);
  http::RawClient client(server_->port());
  client.Send(Head("/events?tags=val%2Floss"));
  Json event = NextEvent(client, "runs");
  EXPECT_EQ(event["names"], (Json{"a", "b"}));
  AddRun("new one");
  while (!event.is_null() && event["names"].size() < 3) event = NextEvent(client, "runs");
  EXPECT_EQ(event["names"], (Json{"a", "b", "new one"}));
  while (!event.is_null() && event["series"].empty()) event = NextEvent(client, "runs");
  EXPECT_EQ(event["series"][0]["run"], "new one");
  EXPECT_EQ(event["series"][0]["tag"], "val/loss");
  EXPECT_EQ(AskJson("/api/run?run=new+one")["run"], "new one");
  EXPECT_EQ(AskJson("/api/runs")["runs"].size(), 3);
}

TEST_F(PageServerTest, AClientThatReadsNothingHoldsUpNobody) {
  Start(root_);
  http::RawClient slow(server_->port(), 4096), quick(server_->port());
  slow.Send(Head("/events?run=a"));
  quick.Send(Head("/events?run=a"));
  ASSERT_FALSE(NextEvent(quick, "run").is_null());
  std::string lines;
  for (int step = 2; step < 40'000; ++step) {
    lines += absl::StrCat("{\"phase\":\"grpo\",\"step\":", step, ",\"val/loss\":", step, ",\"x\":", step % 7, "}\n");
    if (step % 1000 != 0) continue;
    Append("a", "metrics.jsonl", std::exchange(lines, ""));
  }
  for (int64_t last = 0; last < 39'000;) {
    const Json event = NextEvent(quick, "run");
    ASSERT_FALSE(event.is_null());
    for (const Json& phase : event["phases"]) last = phase["last_step"];
  }
}

TEST_F(PageServerTest, MakesEventsOnceForAllWhoListen) {
  Start(root_);
  constexpr int kReaders = 40, kSteps = 10;
  std::vector<std::unique_ptr<http::RawClient>> readers;
  for (int i = 0; i < kReaders; ++i) {
    readers.push_back(std::make_unique<http::RawClient>(server_->port()));
    readers.back()->Send(Head("/events?run=a"));
  }
  int64_t told = 0;
  const auto read_until = [&](int step) {
    for (const auto& reader : readers) {
      for (int64_t last = 0; last < step; ++told) {
        const Json event = NextEvent(*reader, "run");
        ASSERT_FALSE(event.is_null());
        for (const Json& phase : event["phases"]) last = phase["last_step"];
      }
    }
  };
  read_until(1);
  told = 0;
  const int64_t before = server_->texts_made();
  for (int step = 2; step < 2 + kSteps; ++step) {
    Append("a", "metrics.jsonl", absl::StrCat("{\"phase\":\"grpo\",\"step\":", step, ",\"val/loss\":0.5}\n"));
    read_until(step);
  }
  EXPECT_GE(told, kReaders * kSteps);
  EXPECT_LT(server_->texts_made() - before, told / 2) << "about one for each step, if all readers keep up";
}

TEST_F(PageServerTest, OthersFollowAFirstEventOfAnyLength) {
  constexpr int kSteps = 3000, kMetrics = 60;
  std::string lines;
  for (int step = 2; step <= kSteps; ++step) {
    absl::StrAppend(&lines, "{\"phase\":\"grpo\",\"step\":", step);
    for (int i = 0; i < kMetrics; ++i) absl::StrAppend(&lines, ",\"m", i, "\":", (step * 7919 + i) % 1000);
    lines += "}\n";
  }
  Append("a", "metrics.jsonl", lines);
  Start(root_);
  http::RawClient early(server_->port());
  early.Send(Head("/events?run=a"));
  for (int64_t last = 0; last < kSteps;) {
    const Json event = NextEvent(early, "run");
    ASSERT_FALSE(event.is_null());
    for (const Json& phase : event["phases"]) last = phase["last_step"];
  }
  http::RawClient client(server_->port());
  client.Send(Head("/events?run=a"));
  const Json first = NextEvent(client, "run");
  ASSERT_FALSE(first.is_null());
  EXPECT_GT(first.dump().size(), http::ServerLimits().max_unread_bytes);
  EXPECT_FALSE(NextEvent(client, "machine").is_null());
  EXPECT_FALSE(NextEvent(client, "machine").is_null());
}

TEST_F(PageServerTest, AnswersWhileSixHundredListenAndSomeOfThemReadNothing) {
  constexpr size_t kReaders = 600, kDescriptors = 2000;
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < kDescriptors) GTEST_SKIP() << "only " << limit.rlim_max << " descriptors";
  limit.rlim_cur = std::max<rlim_t>(limit.rlim_cur, kDescriptors);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  std::string lines;
  for (int step = 2; step < 20'000; ++step) {
    absl::StrAppend(&lines, "{\"phase\":\"grpo\",\"step\":", step, ",\"val/loss\":", step % 7, "}\n");
  }
  Append("a", "metrics.jsonl", lines);
  Start(root_);
  ASSERT_TRUE(Eventually([&] { return AskJson("/api/run?run=a")["read"] == 1; }));
  const int64_t before = server_->texts_made();
  std::vector<std::unique_ptr<http::RawClient>> readers;
  for (size_t i = 0; i < kReaders; ++i) {
    readers.push_back(std::make_unique<http::RawClient>(server_->port(), i % 10 == 0 ? 4096 : 0));
    readers.back()->Send(Head(i % 2 == 0 ? "/events?run=a" : "/events?tags=val%2Floss"));
  }
  for (size_t i = 0; i < kReaders; ++i) {
    if (i % 10 == 0) continue;  // it reads nothing
    ASSERT_FALSE(NextEvent(*readers[i], i % 2 == 0 ? "run" : "runs").is_null()) << i;
  }
  EXPECT_LT(server_->texts_made() - before, static_cast<int64_t>(kReaders / 4));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(AskJson("/api/runs")["runs"].size(), 2U);
  EXPECT_EQ(AskJson("/api/run?run=a")["run"], "a");
}

TEST_F(PageServerTest, ReadersBeyondTheLimitLeaveRoomForQuestions) {
  rlimit before = {};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few{.rlim_cur = 200, .rlim_max = before.rlim_max};  // for 100 connections, 75 of which may listen
  ::setrlimit(RLIMIT_NOFILE, &few);
  Start(root_);
  ::setrlimit(RLIMIT_NOFILE, &before);
  std::vector<std::unique_ptr<http::RawClient>> readers;
  int listening = 0, refused = 0;
  for (int i = 0; i < 150; ++i) {
    readers.push_back(std::make_unique<http::RawClient>(server_->port()));
    readers.back()->Send(Head("/events?run=a"));
    const std::string head = readers.back()->ReadUntil("\r\n\r\n");
    listening += absl::StartsWith(head, "HTTP/1.1 200 ") ? 1 : 0;
    refused += absl::StartsWith(head, "HTTP/1.1 503 ") ? 1 : 0;
  }
  EXPECT_EQ(listening, 75);
  EXPECT_EQ(refused, 75);
  EXPECT_EQ(AskJson("/api/runs")["runs"].size(), 2U);
}

TEST_F(PageServerTest, AnswersWhileItReadsLongLogs) {
  std::string lines;
  for (int step = 2; step < 30'000; ++step) {
    absl::StrAppend(&lines, "{\"phase\":\"grpo\",\"step\":", step, ",\"val/loss\":0.5,\"x\":", step, ",\"y\":", step,
                    "}\n");
  }
  Append("a", "metrics.jsonl", lines);
  constexpr size_t kRuns = 100;
  for (size_t i = 2; i < kRuns; ++i) {
    const std::string path = absl::StrCat(root_, "/run-", i);
    std::filesystem::create_directories(path + "/tensorboard");
    std::filesystem::create_hard_link(root_ + "/a/config.yaml", path + "/config.yaml");
    std::filesystem::create_hard_link(root_ + "/a/metrics.jsonl", path + "/metrics.jsonl");
  }
  EXPECT_TRUE(Eventually([&] {  // on a busy machine the question may come late
    Start(root_);
    const Json runs = AskJson("/api/runs")["runs"];
    EXPECT_EQ(runs.size(), kRuns);
    return std::any_of(runs.begin(), runs.end(), [](const Json& run) { return run["read"] < 1; });
  })) << "it has read all of them first, each time";
  // Each has its turn.
  http::RawClient client(server_->port());
  client.Send(Head("/events"));
  std::set<std::string> whole;
  while (whole.size() < kRuns) {
    const Json event = NextEvent(client, "runs");
    ASSERT_FALSE(event.is_null()) << whole.size() << " have been read";
    for (const Json& run : event["runs"]) {
      if (run["read"] == 1 && (run["step"] == 29'999 || run["name"] == "b")) whole.insert(run["name"]);
    }
  }
}

TEST_F(PageServerTest, ANewStepOfAllRunsCostsNoMoreAfterManySteps) {
  // The bytes of the events that bring it.
  const auto news_after = [&](int steps) {
    std::string lines;
    for (int step = 2; step <= steps; ++step) {
      absl::StrAppend(&lines, "{\"phase\":\"grpo\",\"step\":", step, ",\"val/loss\":", step % 7, "}\n");
    }
    const std::set<std::string> runs = {"a", "b", "c", "d", "e", "f", "g", "h"};
    std::filesystem::remove_all(root_);
    for (const std::string& run : runs) {
      AddRun(run);
      Append(run, "metrics.jsonl", lines);
    }
    Start(root_);
    http::RawClient client(server_->port());
    client.Send(Head("/events?tags=val%2Floss"));
    const auto bytes_until = [&](int last) {
      size_t bytes = 0;
      for (std::set<std::string> waited = runs; !waited.empty();) {
        const Json event = NextEvent(client, "runs");
        if (event.is_null()) return size_t{0};
        bytes += event.dump().size();
        for (const Json& run : event["runs"]) {
          if (run["step"] == last) waited.erase(run["name"]);
        }
      }
      return bytes;
    };
    EXPECT_GT(bytes_until(steps), 0);
    for (const std::string& run : runs) {
      Append(run, "metrics.jsonl", absl::StrCat("{\"phase\":\"grpo\",\"step\":", steps + 1, ",\"val/loss\":0.5}\n"));
    }
    return bytes_until(steps + 1);
  };
  const size_t after_few = news_after(20), after_many = news_after(20'000);
  EXPECT_GT(after_few, 1000);
  EXPECT_LT(after_many, 3 * after_few);
}

TEST_F(PageServerTest, SaysWhatIsWrongWithARequest) {
  Start(root_);
  EXPECT_THAT(Ask("/events?run=nothing"), AllOf(StartsWith("HTTP/1.1 404"), HasSubstr("\\\"nothing\\\"")));
  EXPECT_THAT(Ask("/api/run?run=../b"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Ask("/etc/passwd"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Ask("/", "Host: evil.example\r\n"), StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(Ask("/", "Host: 127.0.0.1:8080\r\n"), StartsWith("HTTP/1.1 200"));
  http::RawClient client(server_->port());
  client.Send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
  EXPECT_THAT(client.ReadResponse(), StartsWith("HTTP/1.1 405"));
}

TEST_F(PageServerTest, ShowsOneRunFromItsFolderOrOnceItBegins) {
  Start(root_ + "/a/");
  EXPECT_EQ(AskJson("/api/runs")["single"], true);
  EXPECT_EQ(AskJson("/api/runs")["runs"][0]["name"], "a");
  Start("");
  EXPECT_EQ(AskJson("/api/runs"), (Json{{"single", true}, {"runs", Json::array()}}));
  server_->Follow(root_ + "/b");
  EXPECT_TRUE(Eventually([&] { return !AskJson("/api/runs")["runs"].empty(); }));
  EXPECT_EQ(AskJson("/api/runs")["runs"][0]["name"], "b");
}

TEST(PageServer, NamesTheFolderAndTheAddressThatItCannotHave) {
  const auto missing = PageServer::Start(Env::Real(), {.folder = "/nowhere/runs"});
  EXPECT_THAT(missing.status().message(), HasSubstr("/nowhere/runs"));
  const auto first = *PageServer::Start(Env::Real(), {.folder = ""});
  const auto second = PageServer::Start(Env::Real(), {.folder = "", .port = first->port()});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr(absl::StrCat("127.0.0.1:", first->port())));
}

TEST(PageAddress, HasAPortAndPerhapsAHost) {
  EXPECT_EQ(ParsePageAddress("8080")->port, 8080);
  EXPECT_EQ(ParsePageAddress(":0")->host, "127.0.0.1");
  EXPECT_EQ(ParsePageAddress("0.0.0.0:80")->host, "0.0.0.0");
  EXPECT_EQ(ParsePageAddress("[::1]:80")->host, "::1");
  for (const char* wrong : {"", ":", "host", ":99999", ":-1", "host:http"}) {
    EXPECT_THAT(ParsePageAddress(wrong).status().message(), HasSubstr("such as :8080")) << wrong;
  }
}

TEST(PageText, OnlyNamesOfThisMachineAreItsOwn) {
  EXPECT_TRUE(IsOwnHost("localhost:80", "127.0.0.1"));
  EXPECT_TRUE(IsOwnHost("[::1]:80", "127.0.0.1"));
  EXPECT_TRUE(IsOwnHost("10.0.0.5:80", "10.0.0.5"));
  EXPECT_TRUE(IsOwnHost("trainer:80", "0.0.0.0"));
  EXPECT_FALSE(IsOwnHost("evil.example", "127.0.0.1"));
  EXPECT_FALSE(IsOwnHost("", "127.0.0.1"));
  EXPECT_FALSE(IsOwnHost("[", "127.0.0.1"));
}

}  // namespace
}  // namespace tdock::trainer
