#include "tdock/local_dock.h"

#include "dock/conformance_data.h"
#include "dock/conformance_flow.h"
#include "dock/conformance_leases.h"
#include "dock/conformance_life.h"

namespace tdock {
namespace {

// Wakes nobody by itself, and tells until when the last waiter would have slept.
class SleepyClock final : public Clock {
 public:
  absl::Time Now() override { return absl::UnixEpoch(); }
  void Wait(CondVar& cv, Mutex& mu, absl::Time deadline) override TDOCK_REQUIRES(mu) {
    {
      MutexLock lock(mu_);
      deadline_ = deadline;
      changed_.NotifyAll();
    }
    cv.Wait(mu);
  }
  void AwaitDeadline(absl::Time deadline) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (deadline_ != deadline) changed_.Wait(mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  absl::Time deadline_ TDOCK_GUARDED_BY(mu_);
};

TEST(LocalDock, AWaiterWakesForTheEndOfALeaseThatBeganWhileItWaited) {
  SleepyClock clock;
  const std::unique_ptr<Dock> dock = MakeLocalDock({.clock = &clock});
  ASSERT_TRUE(dock->CreatePartition({.name = "p", .columns = {{"a", ColumnType::Dense(DType::kF32)}}}).ok());
  ASSERT_TRUE(dock->RegisterConsumer("p", {.name = "x", .reads = {"a"}, .lease_duration = absl::Seconds(30)}).ok());
  absl::Status status;
  std::thread waiter([&] {
    status = dock->Take({.partition = "p", .consumer = "x", .min = 2, .max = 2, .deadline = absl::InfiniteFuture()})
                 .status();
  });
  clock.AwaitDeadline(absl::InfiniteFuture());
  PutRequest put{.partition = "p"};
  ASSERT_TRUE(put.batch.Add("a", Column::FromValues<float>({1})).ok());
  ASSERT_TRUE(dock->Put(put).ok());
  ASSERT_TRUE(dock->Take({.partition = "p", .consumer = "x"}).ok());
  clock.AwaitDeadline(absl::UnixEpoch() + absl::Seconds(30));
  ASSERT_TRUE(dock->DropPartition("p").ok());
  waiter.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
}

TEST(LocalDock, LargeCellsAndCopiesOfThemUseTheSameMemoryAgain) {
  const std::unique_ptr<Dock> dock = MakeLocalDock();
  ASSERT_TRUE(dock->CreatePartition({.name = "p", .columns = {{"a", ColumnType::Dense(DType::kF32)}}}).ok());
  std::vector<const std::byte*> cells, copies;
  for (int again = 0; again < 2; ++again) {
    PutRequest put{.partition = "p"};
    ASSERT_TRUE(put.batch.Add("a", Column::FromValues<float>(std::vector<float>(1'000'000))).ok());
    const std::vector<RowId> rows = dock->Put(put)->rows;
    const Rows view = *dock->Fetch({.partition = "p", .rows = rows, .columns = {"a"}});
    cells.push_back(view.cell(0, 0).bytes.data());
    copies.push_back(view.ToColumn("a")->values().data());
    ASSERT_TRUE(dock->Clear({.partition = "p", .everything = true}).ok());
  }
  // The first copy was freed before the second put.
  EXPECT_EQ(cells[1], copies[0]);
  EXPECT_EQ(copies[1], cells[0]);
}

INSTANTIATE_TEST_SUITE_P(Local, DockConformance,
                         testing::Values([](Clock& clock) { return MakeLocalDock({.clock = &clock}); }));

}  // namespace
}  // namespace tdock
