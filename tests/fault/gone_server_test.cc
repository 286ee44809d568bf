// What clients are told whose server is killed, stops, or is started again.
#include <gmock/gmock.h>
#include <signal.h>

#include <thread>

#include "absl/strings/match.h"
#include "fault_fixture.h"

namespace tdock::fault {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

class GoneServer : public OverBoth {
 protected:
  struct Ended {
    absl::Status status;
    absl::Time at;
  };

  // Clients that wait for a minute: in takes, in fetches, and in puts for room. `act` happens while they do.
  std::vector<Ended> WaitWhile(const std::function<void()>& act) {
    const std::unique_ptr<Dock> dock = Connect();
    PartitionOptions options = Columns();
    options.max_rows = 1;
    EXPECT_EQ(CreateAll(*dock, {}, options), absl::OkStatus());
    EXPECT_EQ(dock->Put({.partition = kPartition, .batch = MakeBatch(1, 100)}).status(), absl::OkStatus());
    EXPECT_EQ(dock->Take({.partition = kPartition, .consumer = kConsumer}).status(), absl::OkStatus());
    EXPECT_EQ(dock->Put({.partition = kPartition, .new_rows = 1}).status().code(), absl::StatusCode::kDeadlineExceeded);
    const absl::Time late = absl::Now() + absl::Minutes(1);
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
    std::vector<Ended> ended(2 * waits.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ended.size(); ++i) {
      clients.push_back(Connect({.address = address(), .reconnect_for = absl::Seconds(1)}));
      threads.emplace_back([&, i] {
        ended[i].status = waits[i % waits.size()](*clients[i]);
        ended[i].at = absl::Now();
      });
    }
    // Nobody sees from outside that a call has reached the server.
    absl::SleepFor(Seconds(0.3));
    act();
    for (std::thread& thread : threads) thread.join();
    return ended;
  }
};

TEST_P(GoneServer, ThatIsKilledMakesAllWhoWaitUnavailableLongBeforeTheirDeadlines) {
  absl::Time killed;
  const std::vector<Ended> ended = WaitWhile([&] {
    killed = absl::Now();
    server_->process().Signal(SIGKILL);
  });
  for (const Ended& call : ended) {
    EXPECT_TRUE(absl::IsUnavailable(call.status)) << call.status;
    EXPECT_THAT(std::string(call.status.message()), HasSubstr(address()));
    EXPECT_LT(call.at - killed, Seconds(2.5)) << call.status;
  }
}

TEST_P(GoneServer, ThatIsKilledIsLookedForOnceByAllCallsOfAClient) {
  constexpr absl::Duration kReconnectFor = absl::Seconds(2);
  const std::unique_ptr<Dock> dock = Connect({.address = address(), .reconnect_for = kReconnectFor});
  ASSERT_EQ(CreateAll(*dock), absl::OkStatus());
  std::vector<std::thread> threads;
  std::vector<Ended> ended(8);
  for (Ended& call : ended) {
    threads.emplace_back([&] {
      const absl::Time late = absl::Now() + absl::Minutes(1);
      call.status = dock->Take({.partition = kPartition, .consumer = kConsumer, .deadline = late}).status();
      call.at = absl::Now();
    });
  }
  absl::SleepFor(Seconds(0.3));  // for the calls to arrive
  const absl::Time killed = absl::Now();
  server_->process().Signal(SIGKILL);
  for (std::thread& thread : threads) thread.join();
  for (const Ended& call : ended) {
    EXPECT_TRUE(absl::IsUnavailable(call.status)) << call.status;
    EXPECT_LT(call.at - killed, kReconnectFor + Seconds(1)) << call.status;
  }
}

TEST_P(GoneServer, ThatIsAskedToEndTellsAllWhoWaitAndEndsWell) {
  absl::Time asked, over;
  int code = -1;
  const std::vector<Ended> ended = WaitWhile([&] {
    asked = absl::Now();
    server_->process().Signal(SIGTERM);
    code = server_->process().Wait(Seconds(12)).value_or(-1);
    over = absl::Now();
  });
  for (const Ended& call : ended) {
    EXPECT_TRUE(absl::IsUnavailable(call.status)) << call.status;
    EXPECT_THAT(std::string(call.status.message()), HasSubstr("the server is shutting down"));
    EXPECT_LT(call.at - asked, Seconds(0.5)) << call.status;
  }
  EXPECT_EQ(code, 0);
  EXPECT_LT(over - asked, Seconds(3));
}

TEST_P(GoneServer, ThatIsAskedToEndRefusesNewCallsWithoutMakingThemWait) {
  const std::unique_ptr<Dock> dock = Connect({.address = address(), .reconnect_for = absl::Seconds(1)});
  server_->process().Signal(SIGTERM);
  absl::Status status;
  const absl::Time begin = absl::Now();
  EXPECT_TRUE(Eventually(Seconds(5), [&] {
    status = dock->ListPartitions().status();
    return !status.ok();
  }));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_LT(absl::Now() - begin, Seconds(4));
}

class RestartedServer : public testing::TestWithParam<Via> {
 protected:
  void SetUp() override { ASSERT_EQ(server_.Start(), absl::OkStatus()); }
  std::unique_ptr<Dock> Connect() {
    return *ConnectDock({.address = server_.Address(GetParam()), .reconnect_for = Seconds(10)});
  }
  RestartableServer server_;
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
  const absl::Status complete = dock->Complete({.partition = kPartition, .lease = taken->lease});
  EXPECT_TRUE(absl::IsFailedPrecondition(complete)) << complete;
  EXPECT_THAT(std::string(complete.message()), HasSubstr("before the server was restarted"));
  const absl::StatusOr<absl::Time> renew = dock->Renew(kPartition, taken->lease);
  EXPECT_TRUE(absl::IsFailedPrecondition(renew.status())) << renew.status();
  PutRequest put{.partition = kPartition, .batch = MakeBatch(2, 100), .rows = {0, 1}, .lease = taken->lease};
  const absl::Status published = dock->Put(put).status();
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
  ASSERT_EQ(CreateAll(*dock, {}, options), absl::OkStatus());
  ASSERT_EQ(dock->Put({.partition = kPartition, .batch = MakeBatch(1, 100)}).status(), absl::OkStatus());
  absl::Status put, take;
  std::thread putting([&] {
    put = dock->Put({.partition = kPartition, .batch = MakeBatch(1, 100), .deadline = absl::Now() + Seconds(60)})
              .status();
  });
  absl::SleepFor(Seconds(0.3));
  server_.Kill();
  ASSERT_EQ(server_.Start(), absl::OkStatus());
  putting.join();
  EXPECT_TRUE(absl::IsUnavailable(put)) << put;
  EXPECT_THAT(std::string(put.message()), HasSubstr("may or may not have been carried out"));
}

INSTANTIATE_TEST_SUITE_P(Both, GoneServer, testing::Values(Via::kTcp, Via::kSocket), NameOf);
INSTANTIATE_TEST_SUITE_P(Both, RestartedServer, testing::Values(Via::kTcp, Via::kSocket), NameOf);

}  // namespace
}  // namespace tdock::fault
