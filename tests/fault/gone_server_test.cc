// What clients are told whose server is killed, stops, or is started again.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "fault_fixture.h"

namespace tdock::fault {
namespace {

class GoneServer : public OverEach {
 protected:
  // Far longer than a test may take.
  const std::vector<std::string> kLongDrain = {"--drain", "3600"};

  ConnectOptions Hastily() const {
    ConnectOptions options = target().Options();
    options.reconnect_for = absl::Seconds(1);
    return options;
  }

  // Lets clients wait for ever, in takes, in fetches, and in puts for room. Calls `act` this long after the last has
  // begun. Returns how each wait ended.
  std::vector<absl::Status> WaitWhile(const std::function<void()>& act, absl::Duration head_start = Seconds(0.3)) {
    const std::unique_ptr<Dock> dock = Connect();
    PartitionOptions options = Columns();
    options.max_rows = 1;
    EXPECT_EQ(CreateAll(*dock, {}, options), absl::OkStatus());
    EXPECT_EQ(dock->Put({.partition = kPartition, .batch = MakeBatch(1, 100)}).status(), absl::OkStatus());
    EXPECT_EQ(dock->Take({.partition = kPartition, .consumer = kConsumer}).status(), absl::OkStatus());
    EXPECT_EQ(dock->Put({.partition = kPartition, .new_rows = 1}).status().code(), absl::StatusCode::kDeadlineExceeded);
    const absl::Time late = absl::Now() + kNever;
    const std::vector<std::function<absl::Status(Dock&)>> waits = {
        [&](Dock& client) {
          return client.Take({.partition = kPartition, .consumer = kConsumer, .deadline = late}).status();
        },
        [&](Dock& client) {
          return client.Put({.partition = kPartition, .batch = MakeBatch(1, 100), .deadline = late}).status();
        },
        [&](Dock& client) {
          return client.Put({.partition = kPartition, .batch = MakeBatch(1, 4 << 20), .deadline = late}).status();
        },
        [&](Dock& client) {
          return client.Fetch({.partition = "empty", .rows = {0}, .columns = {"text"}, .deadline = late}).status();
        }};
    EXPECT_EQ(dock->CreatePartition(Columns("empty")), absl::OkStatus());
    EXPECT_EQ(dock->Put({.partition = "empty", .new_rows = 1}).status(), absl::OkStatus());
    std::vector<std::unique_ptr<Dock>> clients;
    std::vector<absl::Status> ended(2 * waits.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ended.size(); ++i) {
      clients.push_back(Connect(Hastily()));
      threads.emplace_back([&, i, client = clients[i].get()] { ended[i] = waits[i % waits.size()](*client); });
    }
    // Nobody sees from outside that a call has reached the server. On a loaded machine, one may come later.
    absl::SleepFor(head_start);
    act();
    for (std::thread& thread : threads) thread.join();
    return ended;
  }
};

TEST_P(GoneServer, ThatIsKilledMakesAllWhoWaitUnavailableLongBeforeTheirDeadlines) {
  const std::vector<absl::Status> ended = WaitWhile([&] { server_->process().Signal(SIGKILL); });
  for (const absl::Status& status : ended) {
    EXPECT_THAT(status, Fails(absl::StatusCode::kUnavailable, {address()}));
  }
}

TEST_P(GoneServer, ThatIsKilledIsLookedForOnceByAllCallsOfAClient) {
  // If each looked for it, one after another, they would take more than a minute.
  constexpr absl::Duration kReconnectFor = absl::Seconds(2);
  constexpr int kCalls = 32;
  ConnectOptions options = Patiently(target());
  options.reconnect_for = kReconnectFor;
  const std::unique_ptr<Dock> dock = Connect(options);
  ASSERT_EQ(CreateAll(*dock), absl::OkStatus());
  std::vector<std::thread> threads;
  std::vector<absl::Status> ended(kCalls);
  for (absl::Status& status : ended) {
    threads.emplace_back([&] {
      const absl::Time late = absl::Now() + kNever;
      status = dock->Take({.partition = kPartition, .consumer = kConsumer, .deadline = late}).status();
    });
  }
  absl::SleepFor(Seconds(0.3));  // for the calls to arrive
  const absl::Time killed = absl::Now();
  server_->process().Signal(SIGKILL);
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(absl::Now() - killed, kCalls * kReconnectFor);
  for (const absl::Status& status : ended) EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_P(GoneServer, ThatIsAskedToEndTellsAllWhoWaitAndEndsWell) {
  std::vector<absl::Status> ended;
  const auto told_all = [&] {
    return !ended.empty() && std::all_of(ended.begin(), ended.end(), [](const absl::Status& status) {
      return absl::StrContains(status.message(), "shutting down");
    });
  };
  // On a loaded machine, a call may come when the server is gone: the calls get longer and longer head starts.
  for (absl::Duration head_start = Seconds(0.3); !told_all() && head_start < kPatience; head_start *= 2) {
    // A call that is not told would keep the server from ending for as long.
    Start(kLongDrain);
    int code = -1;
    const auto end = [&] {
      server_->process().Signal(SIGTERM);
      code = server_->process().Wait(kPatience).value_or(-1);
    };
    ended = WaitWhile(end, head_start);
    EXPECT_EQ(code, 0);
    for (const absl::Status& status : ended) EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  }
  EXPECT_TRUE(told_all()) << testing::PrintToString(ended);
}

TEST_P(GoneServer, ThatIsAskedToEndRefusesNewCallsWithoutMakingThemWait) {
  // A call that waited for the end would wait for as long, and have no answer.
  Start(kLongDrain);
  ConnectOptions options = Hastily();
  options.answer_within = kPatience;
  const std::unique_ptr<Dock> dock = Connect(options);
  server_->process().Signal(SIGTERM);
  absl::Status status;
  EXPECT_TRUE(Eventually([&] {
    status = dock->ListPartitions().status();
    return !status.ok();
  }));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

class RestartedServer : public testing::TestWithParam<Over> {
 protected:
  void SetUp() override { ASSERT_EQ(server_.Start(), absl::OkStatus()); }
  std::unique_ptr<Dock> Connect() { return *ConnectDock(Patiently(server_.At(GetParam()))); }
  RestartableServer server_{ServeArguments(GetParam())};
};

TEST_P(RestartedServer, KnowsLeasesOfBeforeAsSuchAndServesItsClientsAgain) {
  const std::unique_ptr<Dock> dock = Connect();
  ASSERT_EQ(CreateAll(*dock), absl::OkStatus());
  ASSERT_EQ(dock->Put({.partition = kPartition, .batch = MakeBatch(2, 100)}).status(), absl::OkStatus());
  const absl::StatusOr<Taken> taken = dock->Take({.partition = kPartition, .consumer = kConsumer, .max = 2});
  ASSERT_EQ(taken.status(), absl::OkStatus());
  server_.Kill();
  // Two servers of the same second give out the same numbers only then.
  absl::SleepFor(absl::Seconds(1.1));
  ASSERT_EQ(server_.Start(), absl::OkStatus());
  // The client finds it by itself.
  ASSERT_EQ(CreateAll(*dock), absl::OkStatus());
  EXPECT_EQ(dock->GetStatus(kPartition)->rows, 0);
  EXPECT_THAT(dock->Complete({.partition = kPartition, .lease = taken->lease}),
              Fails(absl::StatusCode::kFailedPrecondition, {absl::StrCat("lease ", taken->lease), "started"}));
  const absl::StatusOr<absl::Time> renew = dock->Renew(kPartition, taken->lease);
  EXPECT_TRUE(absl::IsFailedPrecondition(renew.status())) << renew.status();
  FillRequest put{.partition = kPartition, .batch = MakeBatch(2, 100), .rows = {0, 1}, .lease = taken->lease};
  const absl::Status published = dock->Fill(put);
  EXPECT_TRUE(absl::IsFailedPrecondition(published)) << published;
  EXPECT_EQ(dock->Put({.partition = kPartition, .batch = MakeBatch(2, 100)}).status(), absl::OkStatus());
  const absl::StatusOr<Taken> again = dock->Take({.partition = kPartition, .consumer = kConsumer, .max = 2});
  ASSERT_EQ(again.status(), absl::OkStatus());
  EXPECT_GT(again->lease, taken->lease);
}

TEST_P(RestartedServer, MayHaveCarriedOutAPutThatWasUnderWay) {
  const std::unique_ptr<Dock> dock = Connect();
  PartitionOptions options = Columns();
  options.max_rows = 1;
  absl::Status put = absl::NotFoundError("");
  // A put that has not reached the first server finds no partition at the second.
  for (absl::Duration head_start = Seconds(0.3); absl::IsNotFound(put) && head_start < kPatience; head_start *= 2) {
    ASSERT_EQ(CreateAll(*dock, {}, options), absl::OkStatus());
    ASSERT_EQ(dock->Put({.partition = kPartition, .batch = MakeBatch(1, 100)}).status(), absl::OkStatus());
    std::thread putting([&] {
      put = dock->Put({.partition = kPartition, .batch = MakeBatch(1, 100), .deadline = absl::Now() + kNever}).status();
    });
    absl::SleepFor(head_start);
    server_.Kill();
    EXPECT_EQ(server_.Start(), absl::OkStatus());
    putting.join();
  }
  EXPECT_THAT(put, Fails(absl::StatusCode::kUnavailable, {server_.At(GetParam()).address, "may not"}));
}

INSTANTIATE_TEST_SUITE_P(Each, GoneServer, testing::Values(Over::kUnix, Over::kTcp, Over::kTls), NameOfParam);
INSTANTIATE_TEST_SUITE_P(Each, RestartedServer, testing::Values(Over::kUnix, Over::kTcp, Over::kTls), NameOfParam);

}  // namespace
}  // namespace tdock::fault
