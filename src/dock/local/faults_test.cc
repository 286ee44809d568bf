// What systems of this kind have been seen to get wrong, one test for each: hangs, losses, mixed prompts, costs that
// grow with the table. The suites over the interface say more on each subject; this file says that none was forgotten.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/testing/fake_clock.h"
#include "tdock/local_dock.h"

namespace tdock::dock {
namespace {

using Code = absl::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;

// Counts how often it is waited with.
class WaitCountingClock final : public Clock {
 public:
  absl::Time Now() override { return fake.Now(); }
  void Wait(CondVar& cv, Mutex& mu, absl::Time deadline) override TDOCK_REQUIRES(mu) {
    ++waits;
    fake.Wait(cv, mu, deadline);
  }
  std::optional<AlarmId> SetAlarm(absl::Time at, std::function<void()> call) override {
    return fake.SetAlarm(at, std::move(call));
  }
  void CancelAlarm(const AlarmId& id) override { fake.CancelAlarm(id); }

  FakeClock fake;
  std::atomic<int> waits = 0;
};

// Takes the oldest, and remembers the most that it was shown.
class CountingSampler final : public CustomSampler {
 public:
  int64_t Window(int64_t max) const override { return 4 * max; }
  std::vector<size_t> Choose(std::span<const Candidate> candidates, int64_t min, int64_t, uint64_t) override {
    most_shown = std::max(most_shown, candidates.size());
    std::vector<size_t> chosen;
    for (size_t i = 0; i < static_cast<size_t>(min); ++i) chosen.push_back(i);
    return chosen;
  }
  size_t most_shown = 0;
};

// Partition "p" with the float32 columns a and b.
class DockFaults : public testing::Test {
 protected:
  void Create(PartitionOptions options = {}) {
    options.name = "p";
    if (options.columns.empty()) {
      options.columns = {{"a", ColumnType::Dense(DType::kF32)}, {"b", ColumnType::Dense(DType::kF32)}};
    }
    ASSERT_EQ(dock_->CreatePartition(options), absl::OkStatus());
  }
  // Consumer "x", of a unless it says otherwise.
  void Register(ConsumerOptions options = {}) {
    if (options.name.empty()) options.name = "x";
    if (options.reads.empty()) options.reads = {"a"};
    ASSERT_EQ(dock_->RegisterConsumer("p", options), absl::OkStatus());
  }

  template <class T = float>
  absl::Status TryFill(const std::string& column, const std::vector<T>& values, std::vector<RowId> rows,
                       LeaseId lease = kNoLease) {
    FillRequest put{.partition = "p", .rows = std::move(rows), .lease = lease};
    EXPECT_EQ(put.batch.Add(column, Column::FromValues<T>(values)), absl::OkStatus());
    return dock_->Fill(put);
  }
  std::vector<RowId> PutNew(const std::vector<float>& a, std::vector<GroupId> groups = {}) {
    PutRequest put{.partition = "p", .groups = std::move(groups)};
    EXPECT_EQ(put.batch.Add("a", Column::FromValues<float>(a)), absl::OkStatus());
    const absl::StatusOr<PutResult> result = dock_->Put(put);
    EXPECT_EQ(result.status(), absl::OkStatus());
    return result.ok() ? result->rows : std::vector<RowId>();
  }

  absl::StatusOr<Taken> TryTake(int64_t min, int64_t max, absl::Time deadline = absl::InfinitePast()) {
    return dock_->Take({.partition = "p", .consumer = "x", .min = min, .max = max, .deadline = deadline});
  }
  std::vector<RowId> TakeIds(int64_t count, int32_t rank = 0) {
    const auto taken = dock_->Take({.partition = "p", .consumer = "x", .min = count, .max = count, .rank = rank});
    EXPECT_EQ(taken.status(), absl::OkStatus());
    if (!taken.ok()) return {};
    return {taken->rows.ids().begin(), taken->rows.ids().end()};
  }

  PartitionStatus Status() {
    const absl::StatusOr<PartitionStatus> status = dock_->GetStatus("p");
    EXPECT_EQ(status.status(), absl::OkStatus());
    return status.ok() ? *status : PartitionStatus();
  }
  ConsumerStatus StatusOfX() {
    const absl::StatusOr<ConsumerStatus> status = dock_->GetConsumerStatus("p", "x");
    EXPECT_EQ(status.status(), absl::OkStatus());
    return status.ok() ? *status : ConsumerStatus();
  }
  // Another client gets what it asks for.
  void ExpectServing() {
    ASSERT_EQ(dock_->CreatePartition({.name = "other", .columns = {{"a", ColumnType::Bytes()}}}), absl::OkStatus());
    EXPECT_EQ(dock_->DropPartition("other"), absl::OkStatus());
    PutNew({1});
    EXPECT_GE(Status().rows, 1);
  }

  WaitCountingClock clock_;
  std::shared_ptr<CountingSampler> sampler_ = std::make_shared<CountingSampler>();
  std::unique_ptr<Dock> dock_ = MakeLocalDock({.clock = &clock_, .samplers = {{"counting", sampler_}}});
};

// ---- Mixtures.

TEST_F(DockFaults, AGroupSamplerNeverMixesTwoPrompts) {
  // Groups (0, 1) and (2, 3), of which rows 1 and 2 are ready: two neighbours, but of two prompts.
  for (const Sampler sampler : {Sampler::kFirstCome, Sampler::kUniform, Sampler::kLengthBalanced, Sampler::kCustom}) {
    dock_ = MakeLocalDock({.clock = &clock_, .samplers = {{"counting", sampler_}}});
    Create({.columns = {{"a", ColumnType::Dense(DType::kF32)}, {"b", ColumnType::Bytes()}}, .group_size = 2});
    Register({.reads = {"b"},
              .unit = Unit::kGroup,
              .sampler = sampler,
              .length_column = "b",
              .custom_sampler = sampler == Sampler::kCustom ? "counting" : ""});
    const std::vector<RowId> rows = PutNew({0, 1, 2, 3}, {70, 70, 80, 80});
    const auto fill = [&](std::vector<RowId> of) {
      FillRequest put{.partition = "p", .rows = of};
      EXPECT_EQ(put.batch.Add("b", Column::FromStrings(std::vector<std::string>(of.size(), "text"))), absl::OkStatus());
      EXPECT_EQ(dock_->Fill(put), absl::OkStatus());
    };
    fill({rows[1], rows[2]});
    EXPECT_EQ(TryTake(1, 2).status().code(), Code::kDeadlineExceeded);
    fill({rows[3]});
    EXPECT_EQ(TakeIds(1), (std::vector<RowId>{rows[2], rows[3]}));
  }
}

TEST_F(DockFaults, ARowIdThatNobodyWasGivenNeverStandsForAnotherRow) {
  // Padding such as −1 and −2 wraps to the last rows where ids are plain indexes.
  Create();
  const std::vector<RowId> rows = PutNew({1, 2});
  for (const RowId id : {static_cast<RowId>(-1), static_cast<RowId>(-2), static_cast<RowId>(rows.back() + 1)}) {
    EXPECT_EQ(TryFill("b", {7}, {id}).code(), Code::kNotFound);
    EXPECT_EQ(dock_->Fetch({.partition = "p", .rows = {rows[0], id}, .columns = {"a"}}).status().code(),
              Code::kNotFound);
    EXPECT_EQ(dock_->Clear({.partition = "p", .rows = {id}}).status().code(), Code::kNotFound);
    EXPECT_EQ(dock_->Drop({.partition = "p", .rows = {id}}).code(), Code::kNotFound);
  }
  EXPECT_EQ(Status().rows, 2);
  EXPECT_EQ(Status().columns[1].ready_cells, 0);
}

TEST_F(DockFaults, TwoLoadersOfOneRankNeverReadARowTwice) {
  Create();
  Register({.ranks = 2});
  PutNew(std::vector<float>(40));
  std::set<RowId> seen;
  // Two ranks with two loaders each.
  for (int batch = 0; batch < 5; ++batch) {
    for (int loader = 0; loader < 2; ++loader) {
      for (const int32_t rank : {0, 1}) {
        for (RowId row : TakeIds(2, rank)) EXPECT_TRUE(seen.insert(row).second) << row;
      }
    }
  }
  EXPECT_EQ(seen.size(), 40u);
}

// ---- Losses.

TEST_F(DockFaults, APutOfAnotherDTypeIsRefusedAndMarksNothingReady) {
  Create();
  Register();
  const std::vector<RowId> rows = PutNew({1});
  FillRequest put{.partition = "p", .rows = rows};
  ASSERT_EQ(put.batch.Add("b", Column::MakeDense(DType::kF16, {}, 1, Buffer::Allocate(2))), absl::OkStatus());
  const absl::Status status = dock_->Fill(put);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("'b' holds float32[]; given float16[]"));
  EXPECT_EQ(dock_->Put({.partition = "p", .batch = put.batch}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Status().columns[1].ready_cells, 0);
  EXPECT_EQ(Status().rows, 1);
}

TEST_F(DockFaults, ACrashedConsumerLosesNothing) {
  Create({.retain_for = {"x"}});
  Register({.lease_duration = absl::Seconds(30)});
  const std::vector<RowId> rows = PutNew({1, 2, 3});
  EXPECT_EQ(TakeIds(2), (std::vector<RowId>{rows[0], rows[1]}));
  clock_.fake.Advance(absl::Seconds(30));
  EXPECT_EQ(TakeIds(3), rows);
}

TEST_F(DockFaults, AFailedPutIsAnError) {
  Create();
  const std::vector<RowId> rows = PutNew({1});
  EXPECT_FALSE(TryFill("a", {2}, rows).ok());
  EXPECT_FALSE(TryFill("no such column", {2}, rows).ok());
  EXPECT_FALSE(TryFill("b", {2}, {rows[0] + 1}).ok());
  EXPECT_FALSE(TryFill("b", {2}, rows, /*lease=*/9).ok());
  EXPECT_FALSE(TryFill<int64_t>("b", {2}, rows).ok());
  EXPECT_EQ(Status().columns[1].ready_cells, 0);
}

TEST_F(DockFaults, ALatePutAfterAClearIsRefused) {
  Create();
  Register({.writes = {"b"}});
  const std::vector<RowId> rows = PutNew({1, 2});
  const absl::StatusOr<Taken> taken = TryTake(2, 2);
  ASSERT_EQ(taken.status(), absl::OkStatus());
  ASSERT_EQ(*dock_->Clear({.partition = "p", .everything = true}), 2);
  // The next step's rows do not stand where the old ones stood.
  PutNew({3, 4});
  EXPECT_FALSE(TryFill("b", {5, 6}, rows, taken->lease).ok());
  EXPECT_EQ(TryFill("b", {5, 6}, rows).code(), Code::kNotFound);
  EXPECT_EQ(Status().columns[1].ready_cells, 0);
}

// ---- Hangs.

TEST_F(DockFaults, AGetForMoreRowsThanAreReadyEndsAtItsDeadline) {
  Create();
  Register();
  PutNew({1, 2, 3, 4});
  absl::Status status;
  std::thread waiter([&] { status = TryTake(8, 8, clock_.Now() + absl::Seconds(5)).status(); });
  clock_.fake.AwaitWaiters(1);
  ExpectServing();
  clock_.fake.Advance(absl::Seconds(5));
  waiter.join();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(StatusOfX().ready, 5);
}

TEST_F(DockFaults, WaitsTimeOutAndSayWhatWasMissing) {
  Create();
  Register({.reads = {"b"}});
  const std::vector<RowId> rows = PutNew({1});
  absl::Status take, fetch;
  std::thread taker([&] { take = TryTake(1, 1, clock_.Now() + absl::Seconds(5)).status(); });
  std::thread fetcher([&] {
    fetch =
        dock_->Fetch({.partition = "p", .rows = rows, .columns = {"b"}, .deadline = clock_.Now() + absl::Seconds(5)})
            .status();
  });
  clock_.fake.AwaitWaiters(2);
  clock_.fake.Advance(absl::Seconds(5));
  taker.join();
  fetcher.join();
  for (const absl::Status& status : {take, fetch}) {
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
    EXPECT_THAT(status.message(), HasSubstr("lacks 'b'"));
  }
}

TEST_F(DockFaults, DroppingWhatIsWaitedForEndsTheWait) {
  Create();
  Register();
  absl::Status status;
  std::thread waiter([&] { status = TryTake(1, 1, absl::InfiniteFuture()).status(); });
  clock_.fake.AwaitWaiters(1);
  ASSERT_EQ(dock_->DropPartition("p"), absl::OkStatus());
  waiter.join();
  EXPECT_EQ(status.code(), Code::kNotFound);
}

TEST_F(DockFaults, AMalformedRequestLeavesTheDockServing) {
  Create();
  Register();
  const std::vector<RowId> rows = PutNew({1});
  const std::string junk("\x1b[2J\0\xff", 6);
  EXPECT_FALSE(dock_->GetStatus(junk).ok());
  EXPECT_FALSE(dock_->Explain("p", junk).ok());
  EXPECT_FALSE(dock_->Take({.partition = junk, .consumer = junk, .deadline = absl::InfiniteFuture()}).ok());
  EXPECT_FALSE(dock_->Take({.partition = "p", .consumer = "x", .min = -1, .max = -5}).ok());
  EXPECT_FALSE(TryTake(INT64_MAX, INT64_MAX).ok());
  EXPECT_FALSE(TryTake(1, INT64_MIN).ok());
  EXPECT_FALSE(dock_->Take({.partition = "p", .consumer = "x", .rank = INT32_MIN}).ok());
  EXPECT_FALSE(dock_->Fetch({.partition = "p", .rows = rows, .columns = {junk}}).ok());
  EXPECT_FALSE(dock_->Put({.partition = "p"}).ok());
  EXPECT_FALSE(TryFill("b", {1, 2, 3}, {rows[0], rows[0]}).ok());
  EXPECT_FALSE(dock_->Complete({.partition = "p", .lease = ~LeaseId{0}, .rows = {~RowId{0}}}).ok());
  EXPECT_FALSE(dock_->Clear({.partition = "p", .rows = {~RowId{0}}, .groups = {kNoGroup}, .everything = true}).ok());
  EXPECT_FALSE(dock_->RegisterConsumer("p", {.name = junk, .max_deliveries = -1}).ok());
  EXPECT_FALSE(dock_->CreatePartition({.name = junk, .group_size = INT64_MIN}).ok());
  EXPECT_EQ(Status().rows, 1);
  ExpectServing();
}

TEST_F(DockFaults, BlockedReadersDoNotStarveWriters) {
  Create();
  Register();
  constexpr int kReaders = 64;
  std::atomic<int> served = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < kReaders; ++i) {
    readers.emplace_back([&] { served += TryTake(1, 1, absl::InfiniteFuture()).ok(); });
  }
  clock_.fake.AwaitWaiters(kReaders);
  for (int i = 0; i < kReaders; ++i) PutNew({static_cast<float>(i)});
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(served, kReaders);
}

TEST_F(DockFaults, AnEmptyReadDoesNotSpin) {
  Create();
  Register({.reads = {"b"}});
  Register({.name = "y"});
  absl::Status status;
  std::thread waiter([&] { status = TryTake(3, 3, absl::InfiniteFuture()).status(); });
  clock_.fake.AwaitWaiters(1);
  // What is not enough, and what is for others.
  const std::vector<RowId> rows = PutNew({1, 2, 3});
  for (int i = 0; i < 100; ++i) PutNew({1});
  ASSERT_TRUE(dock_->Take({.partition = "p", .consumer = "y", .max = 50}).ok());
  ASSERT_TRUE(TryFill("b", {1, 2}, {rows[0], rows[1]}).ok());
  ASSERT_TRUE(TryFill("b", {3}, {rows[2]}).ok());
  waiter.join();
  EXPECT_EQ(status, absl::OkStatus());
  // The system may wake a thread for no reason, but seldom does.
  EXPECT_LE(clock_.waits, 3);
}

// ---- Costs.

TEST_F(DockFaults, ClearingAllButAFewRowsFreesTheirBytes) {
  Create({.columns = {{"a", ColumnType::Dense(DType::kF32, {1'000})}, {"s", ColumnType::Bytes()}}});
  // One batch: the survivors' neighbours in memory are cleared.
  PutRequest put{.partition = "p"};
  ASSERT_EQ(put.batch.Add("a", Column::FromValues<float>(std::vector<float>(1'024'000, 7), {1'000})), absl::OkStatus());
  ASSERT_EQ(put.batch.Add("s", Column::FromStrings(std::vector<std::string>(1'024, std::string(2'000, 's')))),
            absl::OkStatus());
  absl::StatusOr<PutResult> result = dock_->Put(put);
  ASSERT_EQ(result.status(), absl::OkStatus());
  EXPECT_GE(Status().held_bytes, 6'000'000);
  const std::vector<RowId> kept = {result->rows[100], result->rows[900]};
  std::erase_if(result->rows, [&](RowId row) { return row == kept[0] || row == kept[1]; });
  ASSERT_EQ(*dock_->Clear({.partition = "p", .rows = result->rows}), 1'022);
  EXPECT_LE(Status().held_bytes, 20'000);
  const absl::StatusOr<Rows> rows = dock_->Fetch({.partition = "p", .rows = kept, .columns = {"a", "s"}});
  ASSERT_EQ(rows.status(), absl::OkStatus());
  EXPECT_EQ(rows->Get<float>(1, "a")->back(), 7);
  EXPECT_EQ(*rows->Text(0, "s"), std::string(2'000, 's'));
}

TEST_F(DockFaults, UniformRowsComeBackDense) {
  Create({.columns = {{"a", ColumnType::Dense(DType::kF32, {3})}}});
  Register();
  PutRequest put{.partition = "p"};
  ASSERT_EQ(put.batch.Add("a", Column::FromValues<float>({1, 2, 3}, {3})), absl::OkStatus());
  for (int i = 0; i < 4; ++i) ASSERT_EQ(dock_->Put(put).status(), absl::OkStatus());
  const absl::StatusOr<Taken> taken = TryTake(4, 4);
  ASSERT_EQ(taken.status(), absl::OkStatus());
  const Batch batch = *taken->rows.ToBatch();
  EXPECT_EQ(batch.Find("a")->type(), ColumnType::Dense(DType::kF32, {3}));
  EXPECT_EQ(batch.Find("a")->values().size(), 4 * 3 * sizeof(float));
}

TEST_F(DockFaults, RowsOfUnequalLengthAreNotPadded) {
  Create({.columns = {{"a", ColumnType::Ragged(DType::kI64)}}});
  Register();
  // One long response among short ones: padded to it, they would take 80 MB.
  std::vector<std::vector<int64_t>> responses(1'000, {1});
  responses[500].assign(10'000, 2);
  PutRequest put{.partition = "p"};
  ASSERT_EQ(put.batch.Add("a", Column::FromRows(responses)), absl::OkStatus());
  ASSERT_EQ(dock_->Put(put).status(), absl::OkStatus());
  EXPECT_LE(Status().held_bytes, 200'000);
  const absl::StatusOr<Taken> taken = TryTake(1'000, 1'000);
  ASSERT_EQ(taken.status(), absl::OkStatus());
  EXPECT_EQ(taken->rows.Get<int64_t>(501, "a")->size(), 1u);
  EXPECT_LE(taken->rows.ToColumn("a")->values().size(), 200'000u);
}

TEST_F(DockFaults, ATakeBringsItsDataAtOnceAndWithoutACopy) {
  Create();
  Register();
  Register({.name = "y"});
  const std::vector<RowId> rows = PutNew({5});
  const absl::StatusOr<Taken> x = TryTake(1, 1), y = dock_->Take({.partition = "p", .consumer = "y"});
  ASSERT_EQ(x.status(), absl::OkStatus());
  ASSERT_EQ(y.status(), absl::OkStatus());
  EXPECT_THAT(*x->rows.Get<float>(0, "a"), ElementsAre(5));
  EXPECT_EQ(x->rows.cell(0, 0).bytes.data(), y->rows.cell(0, 0).bytes.data());
}

TEST_F(DockFaults, SamplingDoesNotGrowWithTheTable) {
  // Counts what a sampler is shown; the benchmarks measure the time.
  Create();
  Register({.sampler = Sampler::kCustom, .custom_sampler = "counting"});
  for (const size_t rows : {size_t{100}, size_t{10'000}}) {
    PutNew(std::vector<float>(rows));
    EXPECT_EQ(TakeIds(5).size(), 5u);
    EXPECT_EQ(sampler_->most_shown, 20u);
  }
}

}  // namespace
}  // namespace tdock::dock
