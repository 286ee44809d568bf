#include "dock/local/served_dock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <stop_token>

#include "core/base/testing/fake_clock.h"
#include "dock/store/cell_memory.h"

namespace tdock::dock {
namespace {

using testing::ElementsAre;

// Counts the alarms that are set: each look of a call in vain sets one.
class AlarmCountingClock final : public Clock {
 public:
  absl::Time Now() override { return fake.Now(); }
  void Wait(CondVar& cv, Mutex& mu, absl::Time deadline) override TDOCK_REQUIRES(mu) { fake.Wait(cv, mu, deadline); }
  std::optional<AlarmId> SetAlarm(absl::Time at, std::function<void()> call) override {
    ++alarms;
    return fake.SetAlarm(at, std::move(call));
  }
  void CancelAlarm(const AlarmId& id) override { fake.CancelAlarm(id); }

  FakeClock fake;
  std::atomic<int> alarms = 0;
};

// Takes as few as it may, and fails when it is told to.
class ModestSampler final : public CustomSampler {
 public:
  int64_t Window(int64_t max) const override { return max; }
  std::vector<size_t> Choose(std::span<const Candidate>, int64_t min, int64_t, uint64_t) override {
    if (failures > 0 && failures-- > 0) throw std::runtime_error("no idea");
    std::vector<size_t> chosen;
    for (size_t i = 0; i < static_cast<size_t>(min); ++i) chosen.push_back(i);
    return chosen;
  }
  int failures = 0;
};

// Partition "p" with the float32 columns a and b, and consumer "x" of a.
class ServedDockTest : public testing::Test {
 protected:
  using Code = absl::StatusCode;

  void Create(PartitionOptions options = {}, ConsumerOptions consumer = {}) {
    options.name = "p";
    options.columns = {{"a", ColumnType::Dense(DType::kF32)}, {"b", ColumnType::Dense(DType::kF32)}};
    consumer.name = "x";
    consumer.reads = {"a"};
    ASSERT_EQ(dock_->CreatePartition(options), absl::OkStatus());
    ASSERT_EQ(dock_->RegisterConsumer("p", consumer), absl::OkStatus());
  }

  static PutRequest Floats(size_t rows, absl::Time deadline = absl::InfinitePast()) {
    PutRequest put{.partition = "p", .deadline = deadline};
    EXPECT_EQ(put.batch.Add("a", Column::FromValues<float>(std::vector<float>(rows, 1))), absl::OkStatus());
    return put;
  }
  std::vector<RowId> Put(size_t rows) {
    absl::StatusOr<PutResult> result = dock_->Put(Floats(rows));
    EXPECT_EQ(result.status(), absl::OkStatus());
    return result.ok() ? result->rows : std::vector<RowId>();
  }

  // What became of a call, known by its number: in the order in which they ended.
  struct Ended {
    int call;
    absl::Status status;
    std::vector<RowId> rows;
    LeaseId lease = kNoLease;
  };
  void StartTake(int call, int64_t min, int64_t max, absl::Time deadline = absl::InfiniteFuture(),
                 std::stop_token cancel = {}) {
    dock_->StartTake(
        {.partition = "p", .consumer = "x", .min = min, .max = max, .deadline = deadline, .cancel = cancel},
        [this, call](const absl::StatusOr<Taken>& taken) {
          Ended& end = ended_.emplace_back(Ended{call, taken.status(), {}});
          if (!taken.ok()) return;
          end.rows.assign(taken->rows.ids().begin(), taken->rows.ids().end());
          end.lease = taken->lease;
        });
  }
  void StartPut(int call, size_t rows, absl::Time deadline = absl::InfiniteFuture(), std::stop_token cancel = {}) {
    PutRequest put = Floats(rows, deadline);
    put.cancel = std::move(cancel);
    dock_->StartPut(put, [this, call](const absl::StatusOr<PutResult>& result) {
      ended_.push_back({call, result.status(), result.ok() ? result->rows : std::vector<RowId>()});
    });
  }
  std::vector<int> Calls() const {
    std::vector<int> calls;
    for (const Ended& end : ended_) calls.push_back(end.call);
    return calls;
  }

  AlarmCountingClock clock_;
  std::shared_ptr<ModestSampler> sampler_ = std::make_shared<ModestSampler>();
  std::vector<Ended> ended_;
  std::unique_ptr<ServedDock> dock_ = MakeServedDock({.local = {.clock = &clock_, .samplers = {{"modest", sampler_}}}});
};

// ---- Whom a change wakes.

TEST_F(ServedDockTest, WhatNeedsNoWaitIsAnsweredAtOnce) {
  Create();
  StartPut(1, 2);
  StartTake(2, 1, 5);
  StartTake(3, 1, 1, absl::InfinitePast());
  ASSERT_THAT(Calls(), ElementsAre(1, 2, 3));
  EXPECT_EQ(ended_[1].rows, ended_[0].rows);
  EXPECT_EQ(ended_[2].status.code(), Code::kDeadlineExceeded);
  dock_->StartTake({.partition = "q", .consumer = "x"},
                   [](const absl::StatusOr<Taken>& taken) { EXPECT_EQ(taken.status().code(), Code::kNotFound); });
}

TEST_F(ServedDockTest, APutWakesThoseWhoCanBeServedAndNobodyElse) {
  Create();
  StartTake(1, 3, 3);
  StartTake(2, 2, 9);
  StartTake(3, 1, 1);
  StartTake(4, 1, 1);
  const int before = clock_.alarms;
  Put(1);
  EXPECT_THAT(Calls(), ElementsAre(3));
  Put(3);
  // Who asks for less comes before who came earlier.
  EXPECT_THAT(Calls(), ElementsAre(3, 4, 2));
  EXPECT_EQ(ended_[2].rows.size(), 2u);
  Put(2);
  EXPECT_THAT(Calls(), ElementsAre(3, 4, 2));
  Put(1);
  EXPECT_THAT(Calls(), ElementsAre(3, 4, 2, 1));
  // None looked in vain; but the next in turn looks out for the end of the lease that was made.
  EXPECT_LE(clock_.alarms, before + 3);
}

TEST_F(ServedDockTest, TenThousandThatWaitCostAPutNoMoreThanOne) {
  Create();
  constexpr int kWaiters = 10'000, kPuts = 1'000;
  for (int i = 0; i < kWaiters; ++i) StartTake(i, 1, 4);
  const int before = clock_.alarms;
  for (int i = 0; i < kPuts; ++i) Put(i % 4 + 1);
  // One for each put, in their order: it takes all that there is.
  ASSERT_EQ(ended_.size(), static_cast<size_t>(kPuts));
  for (int i = 0; i < kPuts; ++i) EXPECT_EQ(ended_[static_cast<size_t>(i)].call, i);
  // None looked in vain; but the next in turn looks out for the end of the first lease.
  EXPECT_LE(clock_.alarms - before, kPuts);
}

TEST_F(ServedDockTest, OneThatTakesLessThanItMightPassesTheWakeOn) {
  Create({}, {.sampler = Sampler::kCustom, .custom_sampler = "modest"});
  for (int i = 0; i < 4; ++i) StartTake(i, 1, 3);
  Put(3);
  EXPECT_THAT(Calls(), ElementsAre(0, 1, 2));
}

TEST_F(ServedDockTest, OneThatFailsPassesTheWakeOn) {
  Create({}, {.sampler = Sampler::kCustom, .custom_sampler = "modest"});
  for (int i = 0; i < 3; ++i) StartTake(i, 2, 2);
  sampler_->failures = 2;
  Put(2);
  ASSERT_THAT(Calls(), ElementsAre(0, 1, 2));
  EXPECT_EQ(ended_[0].status.code(), Code::kInternal);
  EXPECT_EQ(ended_[1].status.code(), Code::kInternal);
  EXPECT_EQ(ended_[2].status, absl::OkStatus());
}

TEST_F(ServedDockTest, RanksWaitForTheirOwnRows) {
  Create({}, {.ranks = 2});
  std::vector<int> served;
  for (const int32_t rank : {1, 0, 1}) {
    dock_->StartTake({.partition = "p", .consumer = "x", .rank = rank, .deadline = absl::InfiniteFuture()},
                     [&served, rank](const absl::StatusOr<Taken>&) { served.push_back(rank); });
  }
  Put(1);
  EXPECT_THAT(served, ElementsAre(0));
  Put(1);
  EXPECT_THAT(served, ElementsAre(0, 1));
  dock_.reset();
}

TEST_F(ServedDockTest, AFetchWakesWhenItsCellsAreThere) {
  Create();
  const std::vector<RowId> rows = Put(2);
  std::vector<absl::Status> ended;
  for (const std::vector<RowId>& wanted : {rows, {rows[1]}}) {
    dock_->StartFetch({.partition = "p", .rows = wanted, .columns = {"b"}, .deadline = absl::InfiniteFuture()},
                      [&](const absl::StatusOr<Rows>& read) { ended.push_back(read.status()); });
  }
  const auto fill = [&](RowId row) {
    FillRequest put{.partition = "p", .rows = {row}};
    EXPECT_EQ(put.batch.Add("b", Column::FromValues<float>({1.0f})), absl::OkStatus());
    EXPECT_EQ(dock_->Fill(put), absl::OkStatus());
  };
  const int before = clock_.alarms;
  Put(1);
  EXPECT_EQ(clock_.alarms, before);
  fill(rows[1]);
  EXPECT_THAT(ended, ElementsAre(absl::OkStatus()));
  fill(rows[0]);
  EXPECT_THAT(ended, ElementsAre(absl::OkStatus(), absl::OkStatus()));
}

// ---- How waits end.

TEST_F(ServedDockTest, AWaitEndsAtItsDeadline) {
  Create({.max_rows = 1});
  Put(1);
  StartTake(1, 2, 2, clock_.Now() + absl::Seconds(5));
  StartPut(2, 1, clock_.Now() + absl::Seconds(3));
  clock_.fake.AwaitWaiters(2);
  clock_.fake.Advance(absl::Seconds(2));
  EXPECT_THAT(Calls(), ElementsAre());
  clock_.fake.Advance(absl::Seconds(3));
  ASSERT_THAT(Calls(), ElementsAre(2, 1));
  for (const Ended& end : ended_) EXPECT_EQ(end.status.code(), Code::kDeadlineExceeded);
}

TEST_F(ServedDockTest, ThoseWhoWaitGetTheRowsOfALeaseThatBeganWhileTheyWaited) {
  Create({}, {.lease_duration = absl::Seconds(30)});
  for (int i = 0; i < 3; ++i) StartTake(i, 2, 2);
  Put(1);
  ASSERT_TRUE(dock_->Take({.partition = "p", .consumer = "x"}).ok());
  Put(1);
  clock_.fake.Advance(absl::Seconds(30));
  EXPECT_THAT(Calls(), ElementsAre(0));
  // The next lease is looked after too.
  clock_.fake.Advance(absl::Seconds(30));
  EXPECT_THAT(Calls(), ElementsAre(0, 1));
  clock_.fake.Advance(absl::Seconds(30));
  EXPECT_THAT(Calls(), ElementsAre(0, 1, 2));
}

TEST_F(ServedDockTest, AWaitCanBeCancelled) {
  Create({.max_rows = 2});
  Put(1);
  std::stop_source stop;
  StartTake(1, 2, 2, absl::InfiniteFuture(), stop.get_token());
  StartTake(2, 2, 2);
  StartPut(3, 2, absl::InfiniteFuture(), stop.get_token());
  stop.request_stop();
  EXPECT_THAT(Calls(), testing::UnorderedElementsAre(1, 3));
  for (const Ended& end : ended_) EXPECT_EQ(end.status.code(), Code::kCancelled);
  StartTake(4, 2, 2, absl::InfiniteFuture(), stop.get_token());
  EXPECT_EQ(ended_.back().status.code(), Code::kCancelled);
  // The put that gave up holds nobody back.
  Put(1);
  EXPECT_EQ(ended_.back().call, 2);
}

TEST_F(ServedDockTest, DroppingWhatIsWaitedForEndsTheWait) {
  Create();
  StartTake(1, 1, 1);
  ASSERT_EQ(dock_->DropConsumer("p", "x"), absl::OkStatus());
  ASSERT_THAT(Calls(), ElementsAre(1));
  EXPECT_EQ(ended_[0].status.code(), Code::kNotFound);
  ASSERT_EQ(dock_->RegisterConsumer("p", {.name = "x", .reads = {"a"}}), absl::OkStatus());
  StartTake(2, 1, 1);
  ASSERT_EQ(dock_->DropPartition("p"), absl::OkStatus());
  ASSERT_THAT(Calls(), ElementsAre(1, 2));
  EXPECT_EQ(ended_[1].status.code(), Code::kNotFound);
}

TEST_F(ServedDockTest, TheEndOfTheDockEndsAllWaits) {
  Create({.max_rows = 1});
  const std::vector<RowId> rows = Put(1);
  StartTake(1, 2, 2);
  StartPut(2, 1);
  dock_->StartFetch({.partition = "p", .rows = rows, .columns = {"b"}, .deadline = absl::InfiniteFuture()},
                    [this](const absl::StatusOr<Rows>& read) {
                      ended_.push_back({3, read.status(), {}});
                    });
  dock_.reset();
  ASSERT_THAT(Calls(), testing::UnorderedElementsAre(1, 2, 3));
  for (const Ended& end : ended_) EXPECT_EQ(end.status.code(), Code::kNotFound);
}

TEST_F(ServedDockTest, WhoIsToldMayCallTheDock) {
  Create();
  int left = 100;
  std::function<void(absl::StatusOr<Taken>)> next = [&](const absl::StatusOr<Taken>& taken) {
    ASSERT_EQ(taken.status(), absl::OkStatus());
    ASSERT_EQ(dock_->Complete({.partition = "p", .lease = taken->lease}), absl::OkStatus());
    if (--left == 0) return;
    dock_->StartTake({.partition = "p", .consumer = "x", .deadline = absl::InfiniteFuture()}, next);
    Put(1);
  };
  dock_->StartTake({.partition = "p", .consumer = "x", .deadline = absl::InfiniteFuture()}, next);
  Put(1);
  EXPECT_EQ(left, 0);
}

// ---- Puts that wait for room.

TEST_F(ServedDockTest, PutsAreLetInInTheOrderInWhichTheyCame) {
  Create({.retain_for = {"x"}, .max_rows = 4});
  Put(4);
  StartPut(1, 3);
  StartPut(2, 1);
  StartPut(3, 1);
  const auto complete = [&](int64_t rows) {
    const auto taken = dock_->Take({.partition = "p", .consumer = "x", .min = rows, .max = rows});
    ASSERT_EQ(taken.status(), absl::OkStatus());
    ASSERT_EQ(dock_->Complete({.partition = "p", .lease = taken->lease}), absl::OkStatus());
  };
  complete(2);
  EXPECT_THAT(Calls(), ElementsAre());
  complete(1);
  EXPECT_THAT(Calls(), ElementsAre(1));
  complete(2);
  EXPECT_THAT(Calls(), ElementsAre(1, 2, 3));
}

TEST_F(ServedDockTest, TheRestOfAGroupIsLetInThoughOthersWaitBeforeIt) {
  Create({.group_size = 2, .max_rows = 4});
  const auto put = [&](int call, GroupId group) {
    PutRequest request = Floats(1, absl::InfiniteFuture());
    request.groups = {group};
    dock_->StartPut(request, [this, call](const absl::StatusOr<PutResult>& result) {
      ended_.push_back({call, result.status(), {}});
    });
  };
  put(1, 1);
  put(2, 2);
  put(3, 3);
  put(4, 4);
  put(5, 3);
  EXPECT_THAT(Calls(), ElementsAre(1, 2));
  // Group 3 comes in as a whole, though group 4 waits between its rows.
  ASSERT_EQ(dock_->Clear({.partition = "p", .groups = {1}}).status(), absl::OkStatus());
  EXPECT_THAT(Calls(), testing::UnorderedElementsAre(1, 2, 3, 5));
}

TEST_F(ServedDockTest, WhoLetsGoOfAViewMayHoldALockThatThosePutNeed) {
  constexpr size_t kFloats = 1 << 18;  // 1 MiB
  Create({.max_bytes = 3 << 19});
  Put(kFloats);
  Rows view = *dock_->Fetch({.partition = "p", .rows = {0}, .columns = {"a"}});
  ASSERT_EQ(dock_->Clear({.partition = "p", .everything = true}).status(), absl::OkStatus());
  Mutex mu;
  CondVar changed;
  bool put = false;
  PutRequest request{.partition = "p", .deadline = absl::InfiniteFuture()};
  ASSERT_EQ(request.batch.Add("a", Column::FromValues<float>(std::vector<float>(kFloats))), absl::OkStatus());
  dock_->StartPut(request, [&](const absl::StatusOr<PutResult>& result) {
    EXPECT_EQ(result.status(), absl::OkStatus());
    MutexLock lock(mu);
    put = true;
    changed.NotifyAll();
  });
  MutexLock lock(mu);
  EXPECT_FALSE(put);
  view = Rows();
  while (!put) changed.Wait(mu);
}

// ---- Leases of those who went away.

TEST_F(ServedDockTest, LeasesCanBeEndedAsIfTheirTimeWereOver) {
  Create({}, {.max_deliveries = 2});
  Put(2);
  const auto take = [&] { return dock_->Take({.partition = "p", .consumer = "x"}); };
  const LeaseId lost = take()->lease, done = take()->lease;
  ASSERT_EQ(dock_->Complete({.partition = "p", .lease = done}), absl::OkStatus());
  EXPECT_THAT(*dock_->LiveLeases("p", std::vector<LeaseId>{lost, done, 99}), ElementsAre(lost));
  StartTake(1, 1, 1);
  ASSERT_EQ(dock_->ExpireLeases("p", std::vector<LeaseId>{done, 99, lost}), absl::OkStatus());
  ASSERT_THAT(Calls(), ElementsAre(1));
  EXPECT_THAT(ended_[0].rows, ElementsAre(0));
  EXPECT_THAT(*dock_->LiveLeases("p", std::vector<LeaseId>{lost}), ElementsAre());
  EXPECT_EQ(dock_->Complete({.partition = "p", .lease = lost}).code(), Code::kFailedPrecondition);
  // The second time is the last.
  ASSERT_EQ(dock_->ExpireLeases("p", std::vector<LeaseId>{ended_[0].lease}), absl::OkStatus());
  EXPECT_EQ(dock_->GetConsumerStatus("p", "x")->quarantined, 1);
  EXPECT_EQ(dock_->ExpireLeases("q", {}).code(), Code::kNotFound);
}

// ---- Memory of one partition.

// Remembers what it gave out, and that is still there.
class KnownMemory final : public CellMemory {
 public:
  Buffer Allocate(size_t size_bytes) override {
    Buffer buffer = Buffer::Allocate(size_bytes);
    given.push_back({buffer.data(), size_bytes, buffer.owner()});
    return buffer;
  }
  bool Holds(const std::byte* data) const override {
    return std::any_of(given.begin(), given.end(),
                       [&](const Given& each) { return each.data <= data && data < each.data + each.size; });
  }
  int64_t still_there() const {
    return std::count_if(given.begin(), given.end(), [](const Given& each) { return !each.owner.expired(); });
  }

  struct Given {
    const std::byte* data;
    size_t size;
    std::weak_ptr<const void> owner;
  };
  std::vector<Given> given;
};

class PartitionMemory : public testing::Test {
 protected:
  static constexpr int64_t kRows = 4, kItems = 8'192;  // 64 KiB a row

  void SetUp() override {
    const auto column = [](const char* name, ColumnType type) { return ColumnSpec{name, std::move(type)}; };
    ASSERT_EQ(dock_->CreatePartition({.name = "p",
                                      .columns = {column("dense", ColumnType::Dense(DType::kI64, {kItems})),
                                                  column("ragged", ColumnType::Ragged(DType::kI64)),
                                                  column("small", ColumnType::Dense(DType::kI64))}}),
              absl::OkStatus());
  }
  static Buffer Filled(Memory& memory, int64_t first, int64_t count, int64_t step) {
    Buffer buffer = memory.Allocate(static_cast<size_t>(count) * sizeof(int64_t));
    for (int64_t i = 0; i < count; ++i) reinterpret_cast<int64_t*>(buffer.mutable_data())[i] = first + i * step;
    return buffer;
  }
  static Column Ragged(Memory& values, Memory& offsets, int64_t first_offset = 0) {
    return *Column::MakeRagged(DType::kI64, {}, Filled(values, 0, first_offset + kRows * kItems, 1),
                               Filled(offsets, first_offset, kRows + 1, kItems));
  }
  static Column Dense(Memory& memory) {
    return *Column::MakeDense(DType::kI64, {kItems}, kRows, Filled(memory, 0, kRows * kItems, 1));
  }
  Rows PutAndFetch(const std::string& name, const Column& column) {
    PutRequest put{.partition = "p"};
    EXPECT_EQ(put.batch.Add(name, column), absl::OkStatus());
    const absl::StatusOr<PutResult> result = dock_->Put(put);
    EXPECT_EQ(result.status(), absl::OkStatus());
    return *dock_->Fetch({.partition = "p", .rows = result->rows, .columns = {name}});
  }
  int64_t Held() { return dock_->GetStatus("p")->held_bytes; }

  const std::shared_ptr<KnownMemory> memory_ = std::make_shared<KnownMemory>();
  KnownMemory other_;
  std::unique_ptr<ServedDock> dock_ = MakeServedDock({.memory_for = [this](absl::string_view) { return memory_; }});
};

TEST_F(PartitionMemory, LargeColumnsThatLieThereBecomeCellsWithoutACopy) {
  for (const bool dense : {true, false}) {
    const std::string name = dense ? "dense" : "ragged";
    std::optional<Column> column = dense ? Dense(*memory_) : Ragged(*memory_, *memory_);
    const std::byte* const at = column->PayloadBytes().data();
    const int64_t before = Held();
    std::optional<Rows> rows = PutAndFetch(name, *column);
    const int64_t adopted = Held() - before;
    EXPECT_EQ(rows->cell(2, 0).bytes.data(), at + 2 * kItems * sizeof(int64_t));
    // It counts as a copy does.
    const Rows copied = PutAndFetch(name, dense ? Dense(other_) : Ragged(other_, other_));
    EXPECT_EQ(Held() - before, 2 * adopted);
    EXPECT_EQ(copied.Get<int64_t>(3, name)->back(), kRows * kItems - 1);
    // Views keep what nobody else does.
    column.reset();
    ASSERT_EQ(dock_->Clear({.partition = "p", .everything = true}).status(), absl::OkStatus());
    EXPECT_EQ(rows->Get<int64_t>(3, name)->back(), kRows * kItems - 1);
    EXPECT_EQ(Held() - before, 2 * adopted);
    rows.reset();
    EXPECT_EQ(Held() - before, adopted);
  }
  EXPECT_EQ(memory_->still_there(), 0);
  EXPECT_EQ(Held(), 0);
}

TEST_F(PartitionMemory, WhatDoesNotLieThereAsInABlockIsCopied) {
  for (const Column& column : {Ragged(other_, *memory_), Ragged(*memory_, other_), Ragged(*memory_, *memory_, 8)}) {
    const Rows rows = PutAndFetch("ragged", column);
    EXPECT_NE(rows.cell(0, 0).bytes.data(), column.PayloadBytes().data());
    EXPECT_TRUE(memory_->Holds(rows.cell(0, 0).bytes.data()));
    EXPECT_EQ(rows.Get<int64_t>(3, "ragged")->back(), column.Row<int64_t>(3)->back());
  }
}

TEST_F(PartitionMemory, SmallCellsLieThereTooAndCopiesOfCellsDoNot) {
  EXPECT_EQ(*dock_->MemoryOf("p"), memory_);
  EXPECT_EQ(dock_->MemoryOf("q").status().code(), absl::StatusCode::kNotFound);
  const Rows rows = PutAndFetch("small", Column::FromValues<int64_t>({1, 2}).value());
  EXPECT_TRUE(memory_->Holds(rows.cell(0, 0).bytes.data()));
  EXPECT_FALSE(memory_->Holds(rows.ToColumn("small")->PayloadBytes().data()));
}

}  // namespace
}  // namespace tdock::dock
