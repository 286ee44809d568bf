// What clients leave behind whose processes are killed.
#include <gmock/gmock.h>
#include <signal.h>

#include <numeric>

#include "core/base/rng.h"
#include "fault_fixture.h"

namespace tdock::fault {
namespace {

using testing::Each;

class KilledClient : public OverEach {
 protected:
  // Whether the partition is empty, and no bytes are held for it, some time after it was cleared.
  static bool BecomesEmpty(Dock& dock) {
    return Eventually([&] {
      // What a client had sent in full before it died may still be put.
      EXPECT_EQ(dock.Clear({.partition = kPartition, .everything = true}).status(), absl::OkStatus());
      const absl::StatusOr<PartitionStatus> status = dock.GetStatus(kPartition);
      return status.ok() && status->rows == 0 && status->held_bytes == 0;
    });
  }

  void KillProducers(int kills) {
    const std::unique_ptr<Dock> dock = Connect();
    ASSERT_EQ(CreateAll(*dock), absl::OkStatus());
    const int64_t resident_before = ResidentBytes(server_pid());
    Rng rng(7);
    for (int i = 0; i < kills; ++i) {
      const auto peer = StartPeer({"produce", peer_address(), "120000000"});
      ASSERT_EQ(peer->ReadLine(kPatience).value_or(""), "ready");
      const absl::Time kill_at = absl::Now() + absl::Microseconds(static_cast<int64_t>(rng.Below(400'000)));
      while (absl::Now() < kill_at) EXPECT_TRUE(HasWholeRowsOnly(dock->GetStatus(kPartition).value()));
      // Others do not wait for the put of a producer that stands still.
      if (i % 2 == 0) {
        ASSERT_TRUE(Stop(*peer));
        EXPECT_TRUE(HasWholeRowsOnly(dock->GetStatus(kPartition).value()));
      }
      peer->Signal(SIGKILL);
      ASSERT_TRUE(peer->Wait(kPatience).ok());
      EXPECT_TRUE(HasWholeRowsOnly(dock->GetStatus(kPartition).value()));
      EXPECT_TRUE(BecomesEmpty(*dock)) << "after kill " << i;
    }
    // Segments in which nothing was for four seconds go back.
    const int64_t allowed = resident_before + (int64_t{192} << 20) * kSlowness;
    EXPECT_TRUE(Eventually([&] { return ResidentBytes(server_pid()) < allowed; }))
        << ResidentBytes(server_pid()) << " bytes; there were " << resident_before;
  }
};

TEST_P(KilledClient, LeavesNoHalfRowsOfAPutAndNoMemory) { KillProducers(6); }

TEST_P(KilledClient, DISABLED_LeavesNoHalfRowsOfAPutAndNoMemoryEverAgain) { KillProducers(200); }

TEST_P(KilledClient, GivesItsLeasedRowsBackLongBeforeTheirLeaseEnds) {
  const std::unique_ptr<Dock> dock = Connect();
  ASSERT_EQ(CreateAll(*dock, {.lease_duration = kNever}), absl::OkStatus());
  ASSERT_EQ(dock->Put({.partition = kPartition, .batch = MakeBatch(8, 8000)}).status(), absl::OkStatus());
  const auto peer = StartPeer({"take", peer_address(), "8"});
  ASSERT_EQ(peer->ReadLine(kPatience).value_or(""), "taken");
  ASSERT_EQ(dock->GetConsumerStatus(kPartition, kConsumer)->leased, 8);
  peer->Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return dock->GetConsumerStatus(kPartition, kConsumer)->ready == 8; }));
  EXPECT_EQ(dock->GetConsumerStatus(kPartition, kConsumer)->expired, 8);
  const absl::StatusOr<Taken> taken = dock->Take({.partition = kPartition, .consumer = kConsumer, .max = 8});
  ASSERT_EQ(taken.status(), absl::OkStatus());
  ASSERT_EQ(taken->rows.size(), 8u);
  for (size_t row = 0; row < 8; ++row) EXPECT_EQ(taken->rows.redeliveries(row), 1);
}

TEST_P(KilledClient, HoldsNoBytesThatItLookedAt) {
  const std::unique_ptr<Dock> dock = Connect();
  ASSERT_EQ(CreateAll(*dock), absl::OkStatus());
  ASSERT_EQ(dock->Put({.partition = kPartition, .batch = MakeBatch(16, 16 << 20)}).status(), absl::OkStatus());
  const auto peer = StartPeer({"read", peer_address()});
  ASSERT_EQ(peer->ReadLine(kPatience).value_or(""), "reading");
  ASSERT_EQ(dock->Clear({.partition = kPartition, .everything = true}).value_or(0), 16);
  if (GetParam() == Over::kUnix) {
    EXPECT_GT(dock->GetStatus(kPartition)->held_bytes, 0) << "it looks at them still";
  }
  peer->Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return dock->GetStatus(kPartition)->held_bytes == 0; }));
}

TEST_P(KilledClient, WhileItsCallsWaitStopsNobodyElse) {
  const std::unique_ptr<Dock> dock = Connect();
  PartitionOptions full = Columns();
  full.max_rows = 4;
  ASSERT_EQ(CreateAll(*dock, {}, full), absl::OkStatus());
  ASSERT_EQ(dock->RegisterConsumer(kPartition, {.name = "marks", .reads = {"mark"}, .lease_duration = kNever}),
            absl::OkStatus());
  // Rows without the other columns: a take and a fetch wait for these, and a put of new rows for room.
  PutRequest marks{.partition = kPartition};
  ASSERT_EQ(marks.batch.Add("mark", Column::FromValues<int64_t>({1, 2, 3, 4})), absl::OkStatus());
  ASSERT_EQ(dock->Put(marks).status(), absl::OkStatus());
  for (const char* call : {"take", "fetch", "put"}) {
    for (const int signal : {SIGKILL, SIGTERM, SIGUSR1}) {
      const auto peer = StartPeer({"wait", peer_address(), call});
      ASSERT_EQ(peer->ReadLine(kPatience).value_or(""), "waiting");
      absl::SleepFor(Seconds(0.1));  // for the call to arrive; it waits until the session ends
      peer->Signal(signal);
      ASSERT_TRUE(peer->Wait(kPatience).ok());
    }
  }
  // The sessions end a second after their last connection, in the order in which they lost it. Others are served
  // meanwhile.
  std::unique_ptr<Dock> last = Connect();
  ASSERT_NE(last, nullptr);
  ASSERT_EQ(last->Take({.partition = kPartition, .consumer = "marks"}).status(), absl::OkStatus());
  last.reset();
  EXPECT_TRUE(Eventually([&] { return dock->GetConsumerStatus(kPartition, "marks")->ready == 4; }));
  const std::unique_ptr<Dock> other = Connect();
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(other->Clear({.partition = kPartition, .everything = true}).value_or(0), 4);
  EXPECT_EQ(other->Put({.partition = kPartition, .batch = MakeBatch(4, 4000)}).status(), absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(Each, KilledClient, testing::Values(Over::kUnix, Over::kTcp, Over::kTls), NameOfParam);

}  // namespace
}  // namespace tdock::fault
