// A process that is stopped is not dead: what happens meanwhile, and when it goes on.
#include <gmock/gmock.h>
#include <signal.h>

#include <future>

#include "core/base/testing/fails.h"
#include "fault_fixture.h"

namespace tdock::fault {
namespace {

class StoppedProcess : public OverEach {
 protected:
  // Before the server's own end, so that it can.
  void TearDown() override { server_->process().Signal(SIGCONT); }
};

TEST_P(StoppedProcess, ThatIsAClientKeepsItsLeaseWhileOthersAreServed) {
  const std::unique_ptr<Dock> dock = Connect();
  ASSERT_EQ(CreateAll(*dock), absl::OkStatus());
  ASSERT_EQ(dock->Put({.partition = kPartition, .batch = MakeBatch(4, 1000)}).status(), absl::OkStatus());
  const auto peer = StartPeer({"take", peer_address(), "4"});
  ASSERT_EQ(peer->ReadLine(kPatience).value_or(""), "taken");
  ASSERT_TRUE(Stop(*peer));
  const absl::Time until = absl::Now() + absl::Seconds(3);
  while (absl::Now() < until) {
    const absl::StatusOr<ConsumerStatus> status = dock->GetConsumerStatus(kPartition, kConsumer);
    ASSERT_EQ(status.status(), absl::OkStatus());
    ASSERT_EQ(status->leased, 4);
    absl::SleepFor(absl::Milliseconds(20));
  }
  ASSERT_EQ(dock->Put({.partition = kPartition, .batch = MakeBatch(1, 1000)}).status(), absl::OkStatus());
  ASSERT_EQ(dock->Take({.partition = kPartition, .consumer = kConsumer}).status(), absl::OkStatus());
  peer->Signal(SIGCONT);
  peer->Signal(SIGUSR1);
  EXPECT_EQ(peer->ReadLine(kPatience).value_or(""), "completed");
  EXPECT_EQ(dock->GetConsumerStatus(kPartition, kConsumer)->completed, 4);
  EXPECT_EQ(dock->GetConsumerStatus(kPartition, kConsumer)->expired, 0);
}

TEST_P(StoppedProcess, ThatIsTheServerDelaysCallsUntilTheyGiveUpAndGoesOn) {
  ConnectOptions options = Patiently(target());
  options.answer_within = absl::Seconds(1);
  const std::unique_ptr<Dock> dock = Connect(options);
  const std::unique_ptr<Dock> waiting = Connect(), patient = Connect();
  ASSERT_EQ(CreateAll(*patient), absl::OkStatus());
  auto taken = std::async(std::launch::async, [&] {
    return waiting->Take({.partition = kPartition, .consumer = kConsumer, .deadline = absl::Now() + kPatience});
  });
  absl::SleepFor(Seconds(0.2));
  ASSERT_TRUE(Stop(server_->process()));
  const absl::Time begin = absl::Now();
  EXPECT_THAT(dock->ListPartitions().status(), Fails(absl::StatusCode::kDeadlineExceeded, {address(), "1s"}));
  EXPECT_GE(absl::Now() - begin, absl::Seconds(1));
  // A call that gave up before does not spoil those after it.
  EXPECT_TRUE(absl::IsDeadlineExceeded(dock->GetStatus(kPartition).status()));
  server_->process().Signal(SIGCONT);
  // On a loaded machine, an answer may take longer than a second.
  absl::StatusOr<PartitionStatus> answered;
  ASSERT_TRUE(Eventually([&] {
    answered = dock->GetStatus(kPartition);
    return answered.ok();
  })) << answered.status();
  EXPECT_EQ(answered->rows, 0);
  EXPECT_EQ(patient->Put({.partition = kPartition, .batch = MakeBatch(1, 1000)}).status(), absl::OkStatus());
  const absl::StatusOr<Taken> rows = taken.get();
  ASSERT_EQ(rows.status(), absl::OkStatus());
  EXPECT_EQ(rows->rows.size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Each, StoppedProcess, testing::Values(Over::kUnix, Over::kTcp), NameOfParam);

}  // namespace
}  // namespace tdock::fault
