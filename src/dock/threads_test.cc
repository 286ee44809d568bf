// Many threads on one dock: what must hold whatever their order.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/clock.h"
#include "base/rng.h"
#include "tdock/local_dock.h"

namespace tdock {
namespace {

constexpr const char* kPartition = "train";
constexpr int64_t kGroups = 300, kGroupSize = 4;

ColumnSpec Longs(const std::string& name) { return {name, ColumnType::Dense(DType::kI64)}; }

// Two feeders, two writers of rows, two takers of groups, one who looks on, while leases are given back, expire and are
// refused. Every row must pass every stage exactly once, with its own values, groups whole.
class Pipeline {
 public:
  void Run() {
    Check(dock_->CreatePartition({.name = kPartition,
                                  .columns = {Longs("x"), Longs("twice"), {"note", ColumnType::Bytes()}},
                                  .group_size = kGroupSize,
                                  .retain_for = {"double", "check"}}));
    Check(dock_->RegisterConsumer(kPartition, {.name = "double",
                                               .reads = {"x"},
                                               .writes = {"twice", "note"},
                                               .sampler = Sampler::kUniform,
                                               .lease_duration = absl::Seconds(10)}));
    Check(dock_->RegisterConsumer(kPartition, {.name = "check",
                                               .reads = {"x", "twice", "note"},
                                               .unit = Unit::kGroup,
                                               .lease_duration = absl::InfiniteDuration()}));
    std::vector<std::thread> feeders, stages;
    for (int64_t part = 0; part < 2; ++part) feeders.emplace_back([this, part] { Feed(part); });
    for (uint64_t worker = 0; worker < 3; ++worker) stages.emplace_back([this, worker] { Double(worker); });
    for (int worker = 0; worker < 2; ++worker) stages.emplace_back([this] { CheckGroups(); });
    std::thread observer([this] { Observe(); });
    for (std::thread& thread : feeders) thread.join();
    Check(dock_->Seal(kPartition));
    for (std::thread& thread : stages) thread.join();
    finished_ = true;
    observer.join();

    EXPECT_EQ(checked_, kGroups * kGroupSize);
    EXPECT_EQ(dock_->GetStatus(kPartition)->rows, 0);
    EXPECT_EQ(dock_->GetConsumerStatus(kPartition, "double")->completed, kGroups * kGroupSize);
  }

 private:
  static void Check(const absl::Status& status) { ASSERT_EQ(status, absl::OkStatus()); }

  // Half of the groups, each in two puts.
  void Feed(int64_t part) {
    for (int64_t group = part; group < kGroups; group += 2) {
      for (int64_t half = 0; half < 2; ++half) {
        PutRequest put{.partition = kPartition};
        const int64_t first = group * kGroupSize + 2 * half;
        Check(put.batch.Add("x", Column::FromValues<int64_t>({first, first + 1})));
        put.groups = {static_cast<GroupId>(group), static_cast<GroupId>(group)};
        Check(dock_->Put(put).status());
      }
    }
  }

  void Double(uint64_t worker) {
    Rng rng(worker);
    for (;;) {
      const absl::StatusOr<Taken> taken =
          dock_->Take({.partition = kPartition, .consumer = "double", .max = 7, .deadline = absl::InfiniteFuture()});
      if (taken.status().code() == absl::StatusCode::kOutOfRange) return;
      Check(taken.status());
      const uint64_t fate = rng.Below(10);
      if (fate == 0) {
        // A lease that expired before is as good as given back.
        const absl::Status status = dock_->Release({.partition = kPartition, .lease = taken->lease});
        EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kFailedPrecondition) << status;
        continue;
      }
      if (fate == 1) clock_.Advance(absl::Seconds(11));
      PutRequest put{.partition = kPartition, .lease = taken->lease};
      put.rows.assign(taken->rows.ids().begin(), taken->rows.ids().end());
      std::vector<int64_t> twice;
      std::vector<std::string> notes;
      for (size_t i = 0; i < taken->rows.size(); ++i) {
        const int64_t x = taken->rows.Get<int64_t>(i, "x")->front();
        twice.push_back(2 * x);
        notes.push_back(std::string(static_cast<size_t>(x % 50), 'n'));
      }
      Check(put.batch.Add("twice", Column::FromValues<int64_t>(twice)));
      Check(put.batch.Add("note", Column::FromStrings(notes)));
      const absl::Status status = dock_->Put(put).status();
      EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kFailedPrecondition) << status;
    }
  }

  void CheckGroups() {
    for (;;) {
      const absl::StatusOr<Taken> taken = dock_->Take(
          {.partition = kPartition, .consumer = "check", .min = 2, .max = 5, .deadline = absl::InfiniteFuture()});
      if (taken.status().code() == absl::StatusCode::kOutOfRange) return;
      Check(taken.status());
      const Rows& rows = taken->rows;
      EXPECT_EQ(rows.size() % kGroupSize, 0u);
      for (size_t i = 0; i < rows.size(); ++i) {
        const int64_t x = rows.Get<int64_t>(i, "x")->front();
        EXPECT_EQ(rows.groups()[i], static_cast<GroupId>(x / kGroupSize));
        EXPECT_EQ(rows.groups()[i], rows.groups()[i - i % kGroupSize]);
        EXPECT_EQ(rows.Get<int64_t>(i, "twice")->front(), 2 * x);
        EXPECT_EQ(rows.Text(i, "note")->size(), static_cast<size_t>(x % 50));
      }
      const absl::Status status = dock_->Complete({.partition = kPartition, .lease = taken->lease});
      EXPECT_TRUE(status.ok()) << status;
      checked_ += static_cast<int64_t>(rows.size());
    }
  }

  void Observe() {
    while (!finished_) {
      const PartitionStatus status = *dock_->GetStatus(kPartition);
      for (const NamedConsumerStatus& consumer : status.consumers) {
        const ConsumerStatus& s = consumer.status;
        EXPECT_EQ(s.waiting + s.ready + s.leased + s.done, status.rows);
        EXPECT_GE(s.waiting, 0);
      }
      EXPECT_TRUE(dock_->Explain(kPartition, "check").ok());
      std::this_thread::yield();
    }
  }

  FakeClock clock_;
  std::unique_ptr<Dock> dock_ = MakeLocalDock({.clock = &clock_});
  std::atomic<int64_t> checked_ = 0;
  std::atomic<bool> finished_ = false;
};

TEST(LocalDockThreads, EveryRowPassesEveryStageOnceAndGroupsStayWhole) { Pipeline().Run(); }

}  // namespace
}  // namespace tdock
