// Calls that take long, one after another, keep no other client waiting.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "fault_fixture.h"

namespace tdock::fault {
namespace {

constexpr int64_t kRows = 2'000'000;

class WorstCalls : public OverBoth {};

// What looks at many rows, or at a whole table.
void CallWorst(Dock& dock) {
  ASSERT_EQ(CreateAll(dock), absl::OkStatus());
  ASSERT_EQ(dock.Put({.partition = kPartition, .new_rows = kRows}).status(), absl::OkStatus());
  ASSERT_EQ(dock.Put({.partition = kPartition, .batch = MakeBatch(kRows / 40, kRows)}).status(), absl::OkStatus());
  ASSERT_EQ(dock.List({.partition = kPartition, .limit = kRows}).status(), absl::OkStatus());
  const absl::StatusOr<Taken> taken =
      dock.Take({.partition = kPartition, .consumer = kConsumer, .min = kRows / 40, .max = kRows / 40});
  ASSERT_EQ(taken.status(), absl::OkStatus());
  ASSERT_EQ(dock.Complete({.partition = kPartition, .lease = taken->lease}), absl::OkStatus());
  ASSERT_EQ(dock.RegisterConsumer(kPartition, {.name = "late"}), absl::OkStatus());
  ASSERT_EQ(dock.Clear({.partition = kPartition, .everything = true}).status(), absl::OkStatus());
  ASSERT_EQ(dock.DropPartition(kPartition), absl::OkStatus());
}

TEST_P(WorstCalls, KeepNobodyElseWaiting) {
  const std::unique_ptr<Dock> dock = Connect();
  // On all event loops.
  std::vector<std::unique_ptr<Dock>> others;
  for (int i = 0; i < 3; ++i) others.push_back(Connect());
  ASSERT_EQ(others[0]->CreatePartition(Columns("small")), absl::OkStatus());
  absl::Duration least = absl::InfiniteDuration();
  for (int round = 0; round < 3; ++round) {
    std::atomic<bool> done = false;
    std::thread worst([&] {
      CallWorst(*dock);
      done = true;
    });
    absl::Duration most = absl::ZeroDuration();
    while (!done) {
      for (const auto& other : others) {
        const absl::Time begin = absl::Now();
        EXPECT_EQ(other->GetStatus("small").status(), absl::OkStatus());
        most = std::max(most, absl::Now() - begin);
      }
      absl::SleepFor(absl::Milliseconds(1));
    }
    worst.join();
    least = std::min(least, most);
  }
  RecordProperty("least of three maxima", absl::FormatDuration(least));
  // Whoever waits behind the longest of these calls waits for a quarter of a second.
  EXPECT_LT(least, absl::Milliseconds(100) * kSlowness);
}

INSTANTIATE_TEST_SUITE_P(Both, WorstCalls, testing::Values(Via::kTcp, Via::kSocket), NameOf);

}  // namespace
}  // namespace tdock::fault
