#include "dock/service/console/status_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/testing/patience.h"
#include "core/base/watchdog.h"
#include "core/http/testing/raw_client.h"
#include "dock/service/console/page.h"
#include "dock/service/console/testing/example_dock.h"

namespace tdock::console {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr char kHostile[] = "\"><script>alert('x')</script>&\\";

using http::RawClient;

struct Got {
  int status = 0;  // 0: there was no response
  std::string head = {}, body = {};

  std::string Header(absl::string_view name) const {
    const size_t at = head.find(absl::StrCat("\r\n", name, ": "));
    if (at == std::string::npos) return "";
    const size_t begin = at + name.size() + 4;
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }
};

Got Parsed(const std::string& response) {
  Got got;
  const size_t end = response.find("\r\n\r\n");
  if (end == std::string::npos || !absl::StartsWith(response, "HTTP/1.1 ")) return got;
  got.status = std::stoi(response.substr(9, 3));
  got.head = response.substr(0, end + 2);
  got.body = response.substr(end + 4);
  return got;
}

class StatusServerTest : public testing::Test {
 protected:
  ExampleDock example_;
  std::unique_ptr<StatusServer> server_;

  void Start(StatusServerOptions options) { server_ = Started(*example_.dock, std::move(options)); }
  void Start() {
    Start({.clock = example_.clock,
           .readings =
               [] {
                 return std::vector<Reading>{{.name = "tdock_sessions", .help = "Sessions.", .value = 3},
                                             {.name = "tdock_calls_total",
                                              .help = "Calls.",
                                              .counter = true,
                                              .value = 12,
                                              .labels = {{"method", "put"}}},
                                             {.name = "tdock_calls_total",
                                              .help = "Calls.",
                                              .counter = true,
                                              .value = 5,
                                              .labels = {{"method", "take"}}}};
               },
           .request_timeout = kNever});
  }

  static std::unique_ptr<StatusServer> Started(Dock& dock, StatusServerOptions options) {
    auto server = StatusServer::Start(dock, std::move(options));
    EXPECT_EQ(server.status(), absl::OkStatus());
    return *std::move(server);
  }

  Got Get(const std::string& path) {
    return Parsed(Raw(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")));
  }
  std::string Body(const std::string& path) {
    Got got = Get(path);
    EXPECT_EQ(got.status, 200) << path;
    return std::move(got.body);
  }

  std::string Raw(const std::string& request) {
    RawClient client(server_->port());
    client.Send(request);
    return client.ReadAll();
  }
};

TEST_F(StatusServerTest, GivesMetricsInPrometheusText) {
  Start();
  const Got result = Get("/metrics");
  EXPECT_EQ(result.Header("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  for (const char* line :
       {"# TYPE tdock_rows gauge\ntdock_rows{partition=\"train\"} 8\n", "tdock_groups{partition=\"train\"} 2\n",
        "tdock_incomplete_groups{partition=\"train\"} 0\n", "tdock_sealed{partition=\"train\"} 0\n",
        "tdock_weights_version{partition=\"train\"} 2\n",
        "tdock_ready_cells{partition=\"train\",column=\"responses\"} 4\n",
        "tdock_consumer_rows{partition=\"train\",consumer=\"actor\",state=\"ready\"} 3\n",
        "tdock_consumer_rows{partition=\"train\",consumer=\"rollout\",state=\"leased\"} 2\n",
        "tdock_takeable{partition=\"train\",consumer=\"rollout\"} 2\n", "# TYPE tdock_completed_rows_total counter\n",
        "tdock_completed_rows_total{partition=\"train\",consumer=\"reward\"} 4\n",
        "tdock_committed_step{partition=\"train\",consumer=\"actor\"} -1\n", "tdock_uptime_seconds 0\n",
        "# TYPE tdock_sessions gauge\ntdock_sessions 3\n",
        "# TYPE tdock_calls_total counter\ntdock_calls_total{method=\"put\"} 12\n"
        "tdock_calls_total{method=\"take\"} 5\n"}) {
    EXPECT_THAT(result.body, HasSubstr(line));
  }
  EXPECT_THAT(result.body, Not(HasSubstr("process_resident_memory_bytes 0\n")));
  example_.clock.Advance(absl::Seconds(30));
  EXPECT_THAT(Body("/metrics"), HasSubstr("tdock_uptime_seconds 30\n"));
}

TEST_F(StatusServerTest, TheDocumentationNamesEveryMetric) {
  const absl::StatusOr<std::string> page = Env::Real().ReadFile("docs/service.md");
  ASSERT_EQ(page.status(), absl::OkStatus());
  Start({.clock = example_.clock, .request_timeout = kNever});
  const std::string metrics = Body("/metrics");
  int found = 0;
  for (absl::string_view line : absl::StrSplit(metrics, '\n')) {
    if (!absl::ConsumePrefix(&line, "# TYPE ")) continue;
    EXPECT_THAT(*page, HasSubstr(absl::StrCat("`", line.substr(0, line.find(' ')), "`")));
    ++found;
  }
  EXPECT_EQ(found, 22);
}

TEST_F(StatusServerTest, ShowsPartitionsToPeople) {
  Start();
  const std::string page = Body("/");
  EXPECT_THAT(page, AllOf(StartsWith("<!doctype html>"), HasSubstr("<bdi>train</bdi>"), HasSubstr("<bdi>rollout</bdi>"),
                          HasSubstr("ragged int32[*]"), HasSubstr("sessions"), Not(HasSubstr("{{"))));
  EXPECT_THAT(page, Not(testing::ContainsRegex("(src|href)=\"?(https?:)?//")));
  const std::string one = Body("/partition?name=train");
  EXPECT_THAT(one, AllOf(HasSubstr("<title>train · Transfer Dock</title>"), HasSubstr("<dl class=why>"),
                         HasSubstr("<dt><bdi>actor</bdi>"), HasSubstr("under lease")));
}

TEST_F(StatusServerTest, EachFigureOfAConsumerCarriesItsHeadingForNarrowScreens) {
  Start();
  const std::string page = Body("/");
  for (const char* heading :
       {"takeable", "waiting", "ready", "leased", "quarantined", "done", "completed", "expired"}) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("<td data-of=", heading)));
  }
  EXPECT_THAT(page, HasSubstr("content: attr(data-of)"));
}

TEST_F(StatusServerTest, AllowsNothingButThePagesOwnScript) {
  Start();
  const Got page = Get("/");
  const std::string policy = page.Header("Content-Security-Policy");
  const size_t at = policy.find("'nonce-");
  ASSERT_NE(at, std::string::npos);
  const std::string nonce = policy.substr(at + 7, 32);
  EXPECT_THAT(page.body, HasSubstr(absl::StrCat("<script nonce=\"", nonce, "\">")));
  EXPECT_THAT(policy, AllOf(HasSubstr("default-src 'none'"), Not(HasSubstr("script-src 'unsafe-inline'"))));
  EXPECT_NE(Get("/").Header("Content-Security-Policy"), policy);
}

TEST_F(StatusServerTest, NamesAreDataEverywhere) {
  ASSERT_EQ(example_.dock->CreatePartition({.name = kHostile, .growing = true}), absl::OkStatus());
  ASSERT_EQ(example_.dock->RegisterConsumer(kHostile, {.name = kHostile, .reads = {kHostile}}), absl::OkStatus());
  Start();
  for (const std::string& path : {std::string("/"), absl::StrCat("/partition?name=", EscapeQuery(kHostile))}) {
    const std::string page = Body(path);
    EXPECT_THAT(page, Not(HasSubstr("<script>"))) << path;
    EXPECT_THAT(page, HasSubstr("&quot;&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;\\")) << path;
  }
  EXPECT_THAT(Body("/"), HasSubstr(absl::StrCat("href=\"/partition?name=", EscapeQuery(kHostile), "\"")));
  EXPECT_THAT(Body("/metrics"), HasSubstr("tdock_rows{partition=\"\\\"><script>alert('x')</script>&\\\\\"} 0\n"));
}

TEST_F(StatusServerTest, ATemplateInANameIsNotFilledIn) {
  ASSERT_EQ(example_.dock->CreatePartition({.name = "{{nonce}}{{main}}", .growing = true}), absl::OkStatus());
  Start();
  EXPECT_THAT(Body("/"), HasSubstr("<bdi>{{nonce}}{{main}}</bdi>"));
}

TEST_F(StatusServerTest, SaysThatItIsHealthy) {
  Start();
  EXPECT_EQ(Body("/health"), "ok\n");
}

TEST_F(StatusServerTest, HealthFailsAndPagesSayWhatHangsWhileALockIsNotLetGo) {
  Mutex held;
  std::atomic<bool> hangs = false;
  Heartbeats heartbeats;
  Watchdog watchdog(heartbeats, {{.name = "the table", .touch = [&](const auto&) { MutexLock lock(held); }}},
                    {.stall_after = kNever});
  Start({.clock = example_.clock,
         .readings = [] { return std::vector<Reading>{{.name = "tdock_sessions", .help = "Sessions.", .value = 3}}; },
         .liveness = {.check = [&] { return watchdog.Check(hangs ? absl::Milliseconds(200) : kPatience); },
                      .current_stalls = [&] { return watchdog.CurrentStalls(); },
                      .stalls = [&] { return watchdog.stalls(); }},
         .request_timeout = kNever});
  EXPECT_EQ(Body("/health"), "ok\n");
  EXPECT_THAT(Body("/metrics"), AllOf(HasSubstr("tdock_standing_still 0\n"), HasSubstr("tdock_rows{")));
  held.Lock();
  hangs = true;
  // Each is answered though the lock is held. The watchdog may not have come to the table yet.
  EXPECT_TRUE(Eventually([&] {
    const Got health = Get("/health");
    EXPECT_EQ(health.status, 503);
    return absl::StrContains(health.body, "it waits for the table");
  }));
  const std::string metrics = Body("/metrics");
  EXPECT_THAT(metrics, AllOf(HasSubstr("tdock_standing_still 1\n"), Not(HasSubstr("tdock_rows{")),
                             Not(HasSubstr("tdock_sessions"))));
  EXPECT_THAT(Body("/"), HasSubstr("it waits for the table"));
  EXPECT_EQ(Get("/partition?name=train").status, 503);
  held.Unlock();
  hangs = false;
  EXPECT_TRUE(Eventually([&] { return Get("/health").status == 200; }));
  EXPECT_THAT(Body("/metrics"), HasSubstr("tdock_standing_still 0\n"));
}

TEST_F(StatusServerTest, RefusesWhatItDoesNotHave) {
  Start();
  EXPECT_EQ(Get("/nothing").status, 404);
  EXPECT_EQ(Get("/metrics/").status, 404);
  EXPECT_EQ(Get("/partition").status, 400);
  const Got unknown = Get("/partition?name=nowhere");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_THAT(unknown.body, HasSubstr("nowhere"));
  EXPECT_EQ(unknown.Header("Content-Type"), "text/plain; charset=utf-8");
  const Got posted = Parsed(Raw("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nx=1"));
  EXPECT_EQ(posted.status, 405);
  EXPECT_EQ(posted.Header("Allow"), "GET, HEAD");
}

TEST_F(StatusServerTest, HeadIsGetWithoutTheBody) {
  Start();
  const std::string answer = Raw("HEAD /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("Content-Length: 3\r\n")));
  EXPECT_TRUE(absl::EndsWith(answer, "\r\n\r\n")) << answer;
}

TEST_F(StatusServerTest, RequestsAreBounded) {
  Start();
  const auto with = [](const std::string& path, const std::string& headers) {
    return absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", headers, "\r\n");
  };
  EXPECT_THAT(Raw(with("/" + std::string(17'000, 'x'), "")), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(Raw(with("/", absl::StrCat("X: ", std::string(17'000, 'x'), "\r\n"))), StartsWith("HTTP/1.1 431"));
  std::string many;
  for (int i = 0; i < 4000; ++i) absl::StrAppend(&many, "X", i, ": y\r\n");
  EXPECT_THAT(Raw(with("/", many)), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(Raw(std::string(1000, '\xff') + "\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Raw(with("/", "Transfer-Encoding: xchunked\r\n")), StartsWith("HTTP/1.1 400"));
  // Ranges are not served: many of them would make an answer of many times the page.
  std::string ranges = "Range: bytes=0-";
  for (int i = 0; i < 2000; ++i) absl::StrAppend(&ranges, ",0-");
  const std::string answer = Raw(with("/", ranges + "\r\n"));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_LT(answer.size(), 2 * Body("/").size());
}

TEST_F(StatusServerTest, ASlowClientIsCutOff) {
  Start({.clock = example_.clock, .threads = 1, .request_timeout = absl::Milliseconds(200)});
  RawClient slow(server_->port());
  slow.Send("GET / HT");
  // On a loaded machine, this one may be cut off, too.
  EXPECT_TRUE(Eventually([&] {
    const Got health = Get("/health");
    return health.status == 200;
  }));
  EXPECT_THAT(slow.ReadAll(), Not(HasSubstr("200 OK")));
  EXPECT_TRUE(slow.ended());
}

TEST_F(StatusServerTest, TwentySixIdleConnectionsDoNotSilenceThePage) {
  Start({.clock = example_.clock, .request_timeout = kNever});
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 26; ++i) {
    idle.push_back(std::make_unique<RawClient>(server_->port()));
    if (i % 2 == 0) idle.back()->Send("GET / HT");
  }
  EXPECT_EQ(Body("/health"), "ok\n");
  EXPECT_THAT(Body("/"), StartsWith("<!doctype html>"));
}

TEST_F(StatusServerTest, ClientsThatDoNotReadDoNotSilenceThePage) {
  // A page of more than the system keeps for a connection.
  for (int i = 0; i < 4000; ++i) {
    ASSERT_EQ(example_.dock->CreatePartition({.name = absl::StrCat("p", i), .growing = true}), absl::OkStatus());
  }
  Start({.clock = example_.clock, .request_timeout = kNever});
  std::vector<std::unique_ptr<RawClient>> deaf;
  for (int i = 0; i < 8; ++i) {
    deaf.push_back(std::make_unique<RawClient>(server_->port()));
    deaf.back()->Send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  }
  EXPECT_EQ(Body("/health"), "ok\n");
  EXPECT_THAT(deaf[0]->ReadAll(), HasSubstr("</html>"));
}

TEST_F(StatusServerTest, TheOldestConnectionMakesRoomForANewOne) {
  Start({.clock = example_.clock, .request_timeout = kNever});
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 300; ++i) idle.push_back(std::make_unique<RawClient>(server_->port()));
  EXPECT_EQ(Body("/health"), "ok\n");
  EXPECT_EQ(idle.front()->ReadAll(), "");
  EXPECT_TRUE(idle.front()->ended());
}

TEST_F(StatusServerTest, EndsWhileClientsAreConnected) {
  Start({.clock = example_.clock, .threads = 2, .request_timeout = kNever});
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 12; ++i) {
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    clients.back()->Send("GET / HT");
  }
  server_.reset();
  for (const auto& client : clients) {
    EXPECT_EQ(client->ReadAll(), "");
    EXPECT_TRUE(client->ended());
  }
}

TEST_F(StatusServerTest, SaysWhetherItIsHealthyWhileAllOtherResponsesWait) {
  std::atomic<bool> go_on = false;
  std::atomic<int> waiting = 0;
  Start({.clock = example_.clock,
         .readings =
             [&] {
               ++waiting;
               EXPECT_TRUE(Eventually([&] { return go_on.load(); }));
               return std::vector<Reading>();
             },
         .threads = 2,
         .request_timeout = kNever});
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 10; ++i) {
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    clients.back()->Send("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  }
  EXPECT_TRUE(Eventually([&] { return waiting == 2; }));
  EXPECT_EQ(Body("/health"), "ok\n");
  go_on = true;
  for (const auto& client : clients) EXPECT_EQ(Parsed(client->ReadAll()).status, 200);
}

TEST_F(StatusServerTest, AnswersManyAtOnce) {
  Start();
  std::vector<std::future<int>> codes;
  for (int i = 0; i < 16; ++i) {
    codes.push_back(std::async(std::launch::async, [this] {
      for (int call = 0; call < 20; ++call) {
        const Got result = Get("/metrics");
        if (result.status != 200) return 0;
      }
      return 200;
    }));
  }
  for (std::future<int>& code : codes) EXPECT_EQ(code.get(), 200);
}

TEST_F(StatusServerTest, AnAddressThatIsTakenIsAnError) {
  Start();
  const std::string address = absl::StrCat("127.0.0.1:", server_->port());
  const absl::Status status = StatusServer::Start(*example_.dock, {.address = address}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(address));
  EXPECT_EQ(StatusServer::Start(*example_.dock, {.address = "nonsense"}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(StatusServerTest, ListensOnIpv6Too) {
  auto server = StatusServer::Start(*example_.dock, {.address = "[::1]:0", .request_timeout = kNever});
  if (!server.ok()) GTEST_SKIP() << "this machine has no IPv6 loopback";
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(static_cast<uint16_t>((*server)->port()));
  address.sin6_addr = in6addr_loopback;
  const int client = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::close(client);
}

}  // namespace
}  // namespace tdock::console
