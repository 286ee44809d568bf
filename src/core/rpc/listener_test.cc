#include "core/rpc/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "core/rpc/testing/http2.h"
#include "core/rpc/testing/servers.h"

namespace tdock::rpc {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kUnlimited = std::chrono::hours(24);

// A listener, and the connections that it admits.
struct TestListener {
  Counter admitted;
  Mutex mu;
  std::vector<Admitted> all TDOCK_GUARDED_BY(mu);
  std::unique_ptr<Listener> listener;

  explicit TestListener(ListenerOptions options = {.patience = kUnlimited}) {
    options.rules.token = "t";
    auto made = Listener::Make({.host = "127.0.0.1"}, std::move(options));
    EXPECT_TRUE(made.ok()) << made.status();
    listener = *std::move(made);
    listener->Start([this](Admitted one) {
      {
        MutexLock lock(mu);
        all.push_back(std::move(one));
      }
      admitted.Add();
    });
  }
};

std::string RightCall() { return Opening() + Frame(1, 4, 1, CallFields("/count", "Bearer t")); }

TEST(Listener, GivesTheSocketWithAllThatCameOverIt) {
  TestListener listener;
  RawConnection client(listener.listener->port());
  const std::string bytes = RightCall() + "and what follows";
  client.Send(bytes);
  ASSERT_TRUE(listener.admitted.Await(1));
  MutexLock lock(listener.mu);
  char buffer[1000];
  const ssize_t got = recv(listener.all[0].socket.get(), buffer, sizeof buffer, 0);
  EXPECT_EQ(std::string(buffer, static_cast<size_t>(std::max<ssize_t>(got, 0))), bytes);
  listener.all.clear();
  EXPECT_THAT(client.Drain(), testing::AnyOf("", Admission::Greeting()));
}

TEST(Listener, AnswersWhoeverLacksTheTokenAndHangsUp) {
  TestListener listener;
  RawConnection client(listener.listener->port());
  client.Send(Opening() + Frame(1, 4, 1, CallFields("/count")));
  EXPECT_TRUE(absl::StartsWith(client.Drain(), absl::StrCat(Admission::Greeting(), Frame(4, 1, 0, ""))));
  EXPECT_TRUE(client.AwaitEnd());
  EXPECT_EQ(listener.admitted.count(), 0);
}

TEST(Listener, ClosesAConnectionWhoseRequestDoesNotCome) {
  TestListener listener({.patience = milliseconds(100)});
  RawConnection silent(listener.listener->port());
  RawConnection slow(listener.listener->port());
  slow.Send(RightCall().substr(0, 50));
  EXPECT_TRUE(silent.AwaitEnd());
  EXPECT_TRUE(slow.AwaitEnd());
}

TEST(Listener, ClosesTheOldestWhenThereAreTooMany) {
  TestListener listener({.max_pending = 4, .patience = kUnlimited});
  std::vector<std::unique_ptr<RawConnection>> silent;
  for (int i = 0; i < 8; ++i) silent.push_back(std::make_unique<RawConnection>(listener.listener->port()));
  RawConnection client(listener.listener->port());
  client.Send(RightCall());
  EXPECT_TRUE(listener.admitted.Await(1));
  EXPECT_TRUE(silent[0]->AwaitEnd());
  silent[7]->Send(RightCall());
  EXPECT_TRUE(listener.admitted.Await(2));
}

TEST(Listener, WaitsQuietlyWhenNoDescriptorIsLeftAndSaysSo) {
  Mutex mu;
  std::vector<std::string> said;
  AcceptFailures failures([&](const std::string& sentence) {
    const MutexLock lock(mu);
    said.push_back(sentence);
  });
  TestListener listener({.patience = kUnlimited, .failures = &failures});
  RawConnection client(listener.listener->port());  // before the limit, so that it has a descriptor
  client.Send(RightCall());
  ASSERT_TRUE(listener.admitted.Await(1));
  const Socket late(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Socket next(dup(0));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = static_cast<rlim_t>(next.get()), .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(listener.listener->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(late.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const std::string bytes = RightCall();
  EXPECT_EQ(send(late.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  const absl::Time start = Clock::Real().Now();
  const std::clock_t work = std::clock();
  EXPECT_FALSE(listener.admitted.Await(2, absl::Milliseconds(500)));
  const double took = absl::ToDoubleSeconds(Clock::Real().Now() - start);
  // A thread that does not sleep works all the time.
  EXPECT_LT(static_cast<double>(std::clock() - work) / CLOCKS_PER_SEC, 0.4 * took);
  EXPECT_TRUE(failures.failing());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(listener.admitted.Await(2));
  EXPECT_TRUE(Eventually([&] {
    const MutexLock lock(mu);
    return absl::StrContains(said.back(), "again");
  }));
  const MutexLock lock(mu);
  EXPECT_THAT(said.front(), Mentions({absl::StrCat(next.get()), "EMFILE", "ulimit -n"}));
}

TEST(Listener, StopsWhileConnectionsAreLookedAt) {
  TestListener listener;
  RawConnection silent(listener.listener->port());
  RawConnection client(listener.listener->port());
  client.Send(RightCall());
  ASSERT_TRUE(listener.admitted.Await(1));
  listener.listener->Stop();
  EXPECT_TRUE(silent.AwaitEnd());
}

}  // namespace
}  // namespace tdock::rpc
