#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "core/http/server.h"
#include "core/http/testing/raw_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tdock::http {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string RequestFor(const std::string& path) { return absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n\r\n"); }

// A server whose handlers of /blocked occupy their thread until Open() is called or their client is gone.
class HttpServerLoad : public ::testing::Test {
 protected:
  void TearDown() override {
    Open();
    server_.reset();
  }
  void Start(ServerLimits limits, int threads = 2) {
    limits.request_timeout = limits.idle_timeout = limits.write_timeout = kNever;
    ServerOptions options{.limits = limits, .threads = threads};
    options.is_quick = [](const Request& request) { return request.path == "/quick"; };
    options.on_end = [this](const Ended& ended) { gone_ += ended.gone ? 1 : 0; };
    options.on_trouble = [this](const std::string& sentence) {
      const MutexLock lock(mu_);
      said_.push_back(sentence);
    };
    server_ = *Server::Start(std::move(options), [this](const std::shared_ptr<Exchange>& exchange) {
      const std::string& path = exchange->request().path;
      ++handled_;
      if (path == "/held") {
        const MutexLock lock(mu_);
        return held_.push_back(exchange);
      }
      if (path == "/blocked") {
        EXPECT_TRUE(Eventually([&] { return open_ || exchange->gone(); }));
      }
      exchange->Send({.body = path});
    });
  }
  void Open() { open_ = true; }
  std::unique_ptr<RawClient> Send(const std::string& path, int receive_bytes = 0) {
    auto client = std::make_unique<RawClient>(server_->port(), receive_bytes);
    EXPECT_TRUE(client->Send(RequestFor(path)));
    return client;
  }
  std::string Ask(const std::string& path) { return Send(path)->ReadResponse(); }
  std::vector<std::shared_ptr<Exchange>> AwaitHeld(size_t count) {
    EXPECT_TRUE(Eventually([&] { return held().size() == count; }));
    return held();
  }
  std::vector<std::shared_ptr<Exchange>> held() {
    const MutexLock lock(mu_);
    return held_;
  }
  std::vector<std::string> said() {
    const MutexLock lock(mu_);
    return said_;
  }

  std::atomic<bool> open_ = false;
  std::atomic<int> handled_ = 0, gone_ = 0;
  Mutex mu_;
  std::vector<std::shared_ptr<Exchange>> held_ TDOCK_GUARDED_BY(mu_);
  std::vector<std::string> said_ TDOCK_GUARDED_BY(mu_);
  std::unique_ptr<Server> server_;
};

TEST_F(HttpServerLoad, AnswersQuickRequestsWhileAllThreadsAreBusyAndRefusesWhatWouldWaitBehindTooMany) {
  constexpr size_t kWaiting = 8;
  Start({.max_waiting_requests = kWaiting});
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 2; ++i) clients.push_back(Send("/blocked"));
  ASSERT_TRUE(Eventually([&] { return handled_ == 2; }));
  for (size_t i = 0; i < kWaiting; ++i) clients.push_back(Send("/blocked"));
  ASSERT_TRUE(Eventually([&] { return server_->waiting_requests() == kWaiting; }));
  EXPECT_THAT(Ask("/quick"), EndsWith("/quick"));
  EXPECT_THAT(Ask("/plain"), AllOf(StartsWith("HTTP/1.1 429 "), HasSubstr("\r\nRetry-After: 1\r\n")));
  EXPECT_THAT(Ask("/quick"), EndsWith("/quick"));
  EXPECT_EQ(server_->waiting_requests(), kWaiting);
  Open();
  for (const auto& client : clients) EXPECT_THAT(client->ReadResponse(), EndsWith("/blocked"));
  EXPECT_EQ(server_->waiting_requests(), 0U);
  EXPECT_THAT(Ask("/plain"), EndsWith("/plain"));
}

TEST_F(HttpServerLoad, HandlesNothingForClientsThatLeaveWhileTheyWait) {
  Start({}, /*threads=*/1);
  const auto first = Send("/blocked");
  ASSERT_TRUE(Eventually([&] { return handled_ == 1; }));
  {
    std::vector<std::unique_ptr<RawClient>> impatient;
    for (int i = 0; i < 5; ++i) impatient.push_back(Send("/plain"));
    ASSERT_TRUE(Eventually([&] { return server_->waiting_requests() == 5; }));
  }
  ASSERT_TRUE(Eventually([&] { return gone_ == 5; }));
  Open();
  EXPECT_THAT(first->ReadResponse(), EndsWith("/blocked"));
  EXPECT_THAT(Ask("/plain"), EndsWith("/plain"));
  EXPECT_EQ(handled_, 2);
}

TEST_F(HttpServerLoad, EndTellsHandlersThatTheirClientsAreGoneBeforeItWaitsForThem) {
  Start({}, /*threads=*/1);
  const auto client = Send("/blocked"), next = Send("/plain");
  ASSERT_TRUE(Eventually([&] { return handled_ == 1 && server_->waiting_requests() == 1; }));
  EXPECT_FALSE(server_->Drain(absl::Milliseconds(20)));
  server_.reset();
  EXPECT_EQ(handled_, 1) << "what had waited is not begun";
  EXPECT_EQ(gone_, 2);
  EXPECT_EQ(client->ReadAll(), "");
}

TEST_F(HttpServerLoad, ClosesTheConnectionThatHasWaitedLongestWhenThereAreTooMany) {
  Start({.max_connections = 4});
  std::vector<std::unique_ptr<RawClient>> idle;
  for (size_t i = 0; i < 4; ++i) {
    idle.push_back(std::make_unique<RawClient>(server_->port()));
    if (i % 2 == 0) idle.back()->Send("GET / HT");
    ASSERT_TRUE(Eventually([&] { return server_->connections() == idle.size(); }));
  }
  const auto fifth = Send("/held");
  AwaitHeld(1);
  EXPECT_EQ(idle[0]->ReadAll(), "");
  idle[1]->Send(RequestFor("/held"));
  idle[2]->Send("TP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(idle[2]->ReadResponse(), StartsWith("HTTP/1.1 200 ")) << "it was not the oldest";
  idle[3]->Send(RequestFor("/held"));
  AwaitHeld(3);
  EXPECT_THAT(Ask("/plain"), EndsWith("/plain")) << "in place of the one that has its answer";
  const auto sixth = Send("/held");
  const auto held = AwaitHeld(4);
  EXPECT_THAT(Ask("/plain"), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("\r\nRetry-After: 1\r\n")));
  for (const auto& exchange : held) EXPECT_FALSE(exchange->gone());
}

TEST_F(HttpServerLoad, CutsOffThoseWhoReadNothingWhenAllTogetherHaveTooMuchUnread) {
  Start({.max_unread_bytes = 1 << 20, .max_all_unread_bytes = 8 << 20});
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(Send("/held", 4096));
  const std::string body(32 << 20, 'x');
  for (const auto& exchange : AwaitHeld(3)) exchange->Send({.body = body});
  EXPECT_TRUE(Eventually([&] { return gone_ == 2; }));
  EXPECT_THAT(Ask("/plain"), EndsWith("/plain"));
  int whole = 0;
  for (const auto& client : clients) whole += client->ReadResponse().size() > body.size() ? 1 : 0;
  EXPECT_EQ(whole, 1) << "a single answer may have any length";
}

TEST_F(HttpServerLoad, SaysThatNoDescriptorIsLeftAndGoesOnWhenOneIs) {
  Start({});
  const auto busy = Send("/held");
  const auto held = AwaitHeld(1);
  RawClient late;  // before the limit, so that it has a descriptor
  const int next = ::dup(0);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = static_cast<rlim_t>(next), .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  late.Connect(server_->port());
  EXPECT_TRUE(late.connected());
  late.Send(RequestFor("/plain"));
  EXPECT_TRUE(Eventually([&] { return server_->accept_failures() >= 3; }));
  const std::vector<std::string> failing = said();
  EXPECT_LT(failing.size(), static_cast<size_t>(server_->accept_failures()));
  EXPECT_THAT(failing.at(0), Mentions({absl::StrCat("127.0.0.1:", server_->port()), absl::StrCat(next), "ulimit -n"}));
  // A connection that waits for nothing but a request is worth less than one that has it.
  held[0]->Send({.body = "done"});
  EXPECT_THAT(busy->ReadResponse(), EndsWith("done"));
  EXPECT_THAT(late.ReadResponse(), EndsWith("/plain"));
  EXPECT_EQ(busy->ReadAll(), "");
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ::close(next);
  EXPECT_THAT(Ask("/plain"), EndsWith("/plain"));
  EXPECT_THAT(said().back(), HasSubstr("again"));
}

TEST_F(HttpServerLoad, AStreamForHeadHasNoBody) {
  Start({});
  RawClient client(server_->port());
  client.Send("HEAD /held HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto held = AwaitHeld(1);
  held[0]->Begin({});
  held[0]->Write("piece");
  held[0]->End("last");
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  client.Send(RequestFor("/plain"));
  EXPECT_THAT(client.ReadResponse(), AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("/plain")));
}

}  // namespace
}  // namespace tdock::http
