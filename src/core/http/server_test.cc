#include "core/http/server.h"

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/base/testing/patience.h"
#include "core/http/testing/raw_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tdock::http {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Keeps what handlers and logs say, and lets a test wait for it.
class Seen {
 public:
  void Add(Ended ended) {
    const MutexLock lock(mu_);
    ended_.push_back(std::move(ended));
    changed_.NotifyAll();
  }
  void Add(std::shared_ptr<Exchange> exchange) {
    const MutexLock lock(mu_);
    exchanges_.push_back(std::move(exchange));
    changed_.NotifyAll();
  }
  std::vector<Ended> AwaitEnded(size_t count) {
    const auto deadline = Deadline();
    const MutexLock lock(mu_);
    while (ended_.size() < count && std::chrono::steady_clock::now() < deadline) changed_.WaitUntil(mu_, deadline);
    return ended_;
  }
  std::vector<std::shared_ptr<Exchange>> AwaitExchanges(size_t count) {
    const auto deadline = Deadline();
    const MutexLock lock(mu_);
    while (exchanges_.size() < count && std::chrono::steady_clock::now() < deadline) changed_.WaitUntil(mu_, deadline);
    return std::exchange(exchanges_, {});
  }

 private:
  static std::chrono::steady_clock::time_point Deadline() {
    return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(kPatience);
  }
  Mutex mu_;
  CondVar changed_;
  std::vector<Ended> ended_ TDOCK_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Exchange>> exchanges_ TDOCK_GUARDED_BY(mu_);
};

class HttpServer : public ::testing::Test {
 protected:
  // Timeouts that a test does not set never end.
  void Start(ServerLimits limits = {}) {
    const ServerLimits usual = {};
    if (limits.request_timeout == usual.request_timeout) limits.request_timeout = kNever;
    if (limits.idle_timeout == usual.idle_timeout) limits.idle_timeout = kNever;
    if (limits.write_timeout == usual.write_timeout) limits.write_timeout = kNever;
    ServerOptions options{.limits = limits, .on_end = [this](const Ended& ended) { seen_.Add(ended); }};
    options.admit = [](const Request& request) -> std::optional<Response> {
      if (request.path != "/refused") return std::nullopt;
      return Response{.status = 401, .body = "no"};
    };
    server_ = *Server::Start(std::move(options), [this](std::shared_ptr<Exchange> exchange) {
      const Request& request = exchange->request();
      if (request.path == "/held") return seen_.Add(std::move(exchange));
      if (request.path == "/dropped") return;
      exchange->Send({.body = absl::StrCat(request.method, " ", request.path, "?", request.query, " ", request.body)});
    });
  }
  std::string Ask(const std::string& bytes) {
    RawClient client(server_->port());
    client.Send(bytes);
    return client.ReadResponse();
  }

  Seen seen_;
  std::unique_ptr<Server> server_;
};

TEST_F(HttpServer, AnswersOneRequestAfterAnotherOnAConnection) {
  Start();
  RawClient client(server_->port());
  for (int i = 0; i < 3; ++i) {
    client.Send("POST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody");
    EXPECT_THAT(client.ReadResponse(), AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), EndsWith("\r\n\r\nPOST /a?b=c body")));
  }
  client.Send(
      "GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");  // in one piece
  EXPECT_THAT(client.ReadResponse(), EndsWith("GET /1? "));
  EXPECT_THAT(client.ReadAll(), AllOf(HasSubstr("Connection: close"), EndsWith("GET /2? ")));
}

TEST_F(HttpServer, SendsPiecesAsTheyAreWritten) {
  Start();
  RawClient client(server_->port());
  client.Send("GET /held HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto held = seen_.AwaitExchanges(1);
  ASSERT_EQ(held.size(), 1U);
  held[0]->Begin({.content_type = "text/event-stream"});
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("Transfer-Encoding: chunked"));
  held[0]->Write("one");
  EXPECT_EQ(client.ReadUntil("one\r\n"), "3\r\none\r\n");
  held[0]->Write("");
  held[0]->End("three");
  held[0]->Write("more");
  EXPECT_EQ(client.ReadUntil("0\r\n\r\n"), "5\r\nthree\r\n0\r\n\r\n");
  client.Send("GET /next HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.ReadResponse(), EndsWith("GET /next? "));
  EXPECT_FALSE(held[0]->gone());
}

TEST_F(HttpServer, SendsNoChunksToAnOldClient) {
  Start();
  RawClient client(server_->port());
  client.Send("GET /held HTTP/1.0\r\n\r\n");
  const auto held = seen_.AwaitExchanges(1);
  held[0]->Begin({});
  held[0]->Write("one");
  held[0]->End();
  EXPECT_THAT(client.ReadAll(), AllOf(Not(HasSubstr("chunked")), EndsWith("\r\n\r\none")));
}

TEST_F(HttpServer, RefusesWhatIsTooLargeOrNoRequest) {
  Start({.max_head_bytes = 1000, .max_body_bytes = 100});
  EXPECT_THAT(Ask(absl::StrCat("GET / HTTP/1.1\r\nHost: x\r\nA: ", std::string(2000, 'a'), "\r\n\r\n")),
              HasSubstr(" 431 "));
  EXPECT_THAT(Ask("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n"), HasSubstr(" 413 "));
  const std::string chunk = absl::StrCat("40\r\n", std::string(64, 'a'), "\r\n");
  EXPECT_THAT(Ask(absl::StrCat("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", chunk, chunk)),
              HasSubstr(" 413 "));
  EXPECT_THAT(Ask("nonsense\r\n\r\n"), HasSubstr(" 400 "));
  EXPECT_THAT(Ask("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n"), HasSubstr(" 400 "));
  EXPECT_THAT(Ask("GET / HTTP/1.7\r\n\r\n"), HasSubstr("HTTP/1.1 505 "));
  EXPECT_THAT(Ask("POST /fine HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"),
              EndsWith("POST /fine? ab"));
  EXPECT_THAT(Ask("GET /dropped HTTP/1.1\r\nHost: x\r\n\r\n"), HasSubstr(" 500 "));
}

TEST_F(HttpServer, RefusesByTheHeadBeforeTheBodyIsRead) {
  Start();
  RawClient client(server_->port());
  client.Send("POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nonly this");
  EXPECT_THAT(client.ReadAll(), AllOf(HasSubstr(" 401 "), EndsWith("\r\n\r\nno")));
  EXPECT_EQ(seen_.AwaitEnded(1)[0].status, 401);
}

TEST_F(HttpServer, TellsAClientThatWaitsToSendItsBody) {
  Start();
  RawClient client(server_->port());
  client.Send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("ab");
  EXPECT_THAT(client.ReadResponse(), EndsWith("POST /? ab"));
}

TEST_F(HttpServer, EndsRequestsThatDoNotArriveAndConnectionsWithoutAny) {
  Start({.request_timeout = absl::Milliseconds(50)});
  RawClient slow(server_->port());
  slow.Send("GET / HTTP/1.1\r\nHos");
  EXPECT_THAT(slow.ReadAll(), HasSubstr(" 408 "));
  Start({.idle_timeout = absl::Milliseconds(50)});
  EXPECT_EQ(RawClient(server_->port()).ReadAll(), "");
}

TEST_F(HttpServer, RefusesBodiesThatTogetherAreTooMuch) {
  Start({.max_bodies_bytes = 1000});
  RawClient first(server_->port());
  first.Send(absl::StrCat("POST /held HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n", std::string(900, 'a')));
  const auto held = seen_.AwaitExchanges(1);
  EXPECT_THAT(Ask("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 200\r\n\r\n"),
              AllOf(HasSubstr(" 503 "), HasSubstr("Retry-After")));
  held[0]->Send({});
  first.ReadResponse();
  EXPECT_THAT(Ask(absl::StrCat("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 200\r\n\r\n", std::string(200, 'a'))),
              HasSubstr(" 200 "));
}

TEST_F(HttpServer, CountsABodyInChunksAsItIsAndUntilItIsDropped) {
  Start({.max_body_bytes = 100, .max_bodies_bytes = 100});
  const auto chunked = [](size_t bytes) {
    return absl::StrCat("POST /held HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", absl::Hex(bytes),
                        "\r\n", std::string(bytes, 'a'), "\r\n0\r\n\r\n");
  };
  const std::string plain = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab";
  std::vector<std::unique_ptr<RawClient>> clients;
  std::vector<std::shared_ptr<Exchange>> held;
  for (int i = 0; i < 24; ++i) {  // 96 bytes in all
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    clients.back()->Send(chunked(4));
    for (auto& exchange : seen_.AwaitExchanges(1)) held.push_back(std::move(exchange));
  }
  ASSERT_EQ(held.size(), 24U);
  EXPECT_THAT(Ask(plain), HasSubstr(" 200 "));
  EXPECT_THAT(Ask(chunked(5)), AllOf(HasSubstr(" 503 "), HasSubstr("Retry-After")));
  for (const auto& exchange : held) exchange->DropBody();
  EXPECT_EQ(held[0]->request().body, "");
  EXPECT_THAT(Ask(absl::StrCat("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n", std::string(100, 'a'))),
              HasSubstr(" 200 "));
  for (const auto& exchange : held) exchange->Send({});
  EXPECT_EQ(seen_.AwaitEnded(27)[26].request_bytes, 4U);
}

TEST_F(HttpServer, NoticesThatAClientWithMoreBehindItsRequestHasGone) {
  Start();
  for (const std::string more : {"\r\n", "GET /next HTTP/1.1\r\nHost: x\r\n\r\n"}) {
    for (const bool together : {false, true}) {
      RawClient client(server_->port());
      client.Send(absl::StrCat("GET /held HTTP/1.1\r\nHost: x\r\n\r\n", together ? more : ""));
      const auto held = seen_.AwaitExchanges(1);
      ASSERT_EQ(held.size(), 1U);
      if (!together) client.Send(more);
      Seen told;
      held[0]->OnGone([&] { told.Add(Ended{}); });
      client.Close();
      EXPECT_EQ(told.AwaitEnded(1).size(), 1U) << more << together;
    }
  }
}

TEST_F(HttpServer, NoticesThatAClientHasGone) {
  Start();
  RawClient client(server_->port());
  client.Send("GET /held HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto held = seen_.AwaitExchanges(1);
  Seen told;
  held[0]->OnGone([&] { told.Add(Ended{}); });
  EXPECT_FALSE(held[0]->gone());
  client.Close();
  EXPECT_EQ(told.AwaitEnded(1).size(), 1U);
  EXPECT_TRUE(held[0]->gone());
  EXPECT_TRUE(seen_.AwaitEnded(1)[0].gone);
  held[0]->OnGone([&] { told.Add(Ended{}); });
  EXPECT_EQ(told.AwaitEnded(2).size(), 2U);  // at once
}

TEST_F(HttpServer, CutsOffAReaderWhoDoesNotReadAndNobodyElse) {
  Start({.max_unread_bytes = 64 << 10});
  RawClient slow(server_->port(), 4096), other(server_->port());
  slow.Send("GET /held HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto held = seen_.AwaitExchanges(1);
  held[0]->Begin({});
  size_t most = 0;
  const std::string piece(16 << 10, 'x');
  for (int i = 0; i < 100000 && !held[0]->gone(); ++i) {
    held[0]->Write(piece);
    most = std::max(most, held[0]->unread_bytes());
  }
  EXPECT_TRUE(seen_.AwaitEnded(1).at(0).gone);
  EXPECT_TRUE(held[0]->gone());
  EXPECT_LE(most, (64U << 10) + (17U << 10));
  other.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(other.ReadResponse(), HasSubstr(" 200 "));
}

TEST_F(HttpServer, CutsOffAReaderWhoStops) {
  Start({.max_unread_bytes = 100 << 20, .write_timeout = absl::Milliseconds(100)});
  RawClient slow(server_->port(), 4096);
  slow.Send("GET /held HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto held = seen_.AwaitExchanges(1);
  held[0]->Begin({});
  held[0]->Write(std::string(64 << 20, 'x'));
  EXPECT_TRUE(seen_.AwaitEnded(1)[0].gone);
}

TEST_F(HttpServer, DrainsWhatIsInProgress) {
  Start();
  RawClient idle(server_->port()), busy(server_->port());
  idle.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  idle.ReadResponse();
  busy.Send("GET /held HTTP/1.1\r\nHost: x\r\n\r\n");
  auto held = seen_.AwaitExchanges(1);
  held[0]->Begin({});
  EXPECT_FALSE(server_->Drain(absl::Milliseconds(20)));
  EXPECT_EQ(idle.ReadAll(), "");
  EXPECT_EQ(RawClient(server_->port()).connected(), false);
  held[0]->Write("the end");
  held[0]->End();
  EXPECT_THAT(busy.ReadAll(), EndsWith("7\r\nthe end\r\n0\r\n\r\n"));
  EXPECT_TRUE(server_->Drain(kPatience));
}

TEST_F(HttpServer, OutlivesNoExchangeAndMayGoBeforeThem) {
  Start();
  RawClient client(server_->port());
  client.Send("GET /held HTTP/1.1\r\nHost: x\r\n\r\n");
  auto held = seen_.AwaitExchanges(1);
  server_.reset();
  EXPECT_TRUE(held[0]->gone());
  held[0]->Send({});
  held.clear();
}

TEST_F(HttpServer, SaysWhereItCannotListen) {
  Start();
  const auto nothing = [](const std::shared_ptr<Exchange>&) {};
  const absl::Status taken = Server::Start({.port = server_->port()}, nothing).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(taken.message()), HasSubstr(absl::StrCat("127.0.0.1:", server_->port())));
  EXPECT_EQ(Server::Start({.host = "no address"}, nothing).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(HttpServer, CarriesAThousandStreamsAtTheSameTime) {
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < 2200) GTEST_SKIP() << "only " << limit.rlim_max << " descriptors";
  limit.rlim_cur = std::max<rlim_t>(limit.rlim_cur, 2200);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  constexpr size_t kStreams = 1000;
  Start({.max_waiting_requests = kStreams});
  std::vector<std::unique_ptr<RawClient>> clients;
  for (size_t i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    ASSERT_TRUE(clients.back()->Send("GET /held HTTP/1.1\r\nHost: x\r\n\r\n"));
  }
  std::vector<std::shared_ptr<Exchange>> held;
  while (held.size() < kStreams) {
    auto more = seen_.AwaitExchanges(1);
    ASSERT_FALSE(more.empty());
    held.insert(held.end(), more.begin(), more.end());
  }
  EXPECT_EQ(server_->connections(), kStreams);
  for (const auto& exchange : held) exchange->Begin({});
  for (int round = 0; round < 5; ++round) {  // all have their piece before any gets the next
    for (const auto& exchange : held) exchange->Write(absl::StrCat("piece ", round));
    const std::string piece = absl::StrCat("piece ", round, "\r\n");
    for (const auto& client : clients) ASSERT_THAT(client->ReadUntil(piece), EndsWith(piece));
  }
  for (const auto& exchange : held) exchange->End();
  for (const auto& client : clients) EXPECT_THAT(client->ReadUntil("0\r\n\r\n"), EndsWith("0\r\n\r\n"));
  clients.clear();
  EXPECT_TRUE(server_->Drain(kPatience));
}

}  // namespace
}  // namespace tdock::http
