// Seal, release, clear, counters, memory.
#include <algorithm>
#include <deque>

#include "dock/testing/conformance.h"

namespace tdock::dock {

using testing::ElementsAre;

// ---- Seal.

TEST_P(DockConformance, ASealedPartitionTakesCellsButNoRows) {
  Create();
  const std::vector<RowId> rows = PutFloats({{"a", {1}}});
  ASSERT_EQ(dock_->Seal(kPartition), absl::OkStatus());
  ASSERT_EQ(dock_->Seal(kPartition), absl::OkStatus());
  EXPECT_THAT(Put(Floats({{"a", {1}}})), Fails(Code::kFailedPrecondition, {"sealed"}));
  EXPECT_EQ(Fill(rows, {{"b", {1}}}), absl::OkStatus());
  EXPECT_TRUE(Status().sealed);
}

TEST_P(DockConformance, SealingWithAnIncompleteGroupIsRefusedAndNamesIt) {
  Create({.group_size = 2});
  PutRequest put = Floats({{"a", {1, 2, 3}}});
  put.groups = {5, 5, 6};
  PutNew(put);
  EXPECT_THAT(dock_->Seal(kPartition), Fails(Code::kFailedPrecondition, {"group 6 with 1 of 2 rows"}));
  EXPECT_FALSE(Status().sealed);
  put = Floats({{"a", {4}}});
  put.groups = {6};
  PutNew(put);
  EXPECT_EQ(dock_->Seal(kPartition), absl::OkStatus());
}

TEST_P(DockConformance, InASealedPartitionMinSinksToWhatCanComeAndTheEndComesWhenAllIsDone) {
  Create();
  Register({.name = "x", .reads = {"b"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2, 3}}});
  ASSERT_EQ(Fill({rows[0], rows[1]}, {{"b", {1, 2}}}), absl::OkStatus());
  ASSERT_EQ(dock_->Seal(kPartition), absl::OkStatus());
  // Row 2 can still come: two are not yet all.
  EXPECT_EQ(TryTake("x", 8, 8).status().code(), Code::kDeadlineExceeded);
  ASSERT_EQ(Fill({rows[2]}, {{"b", {3}}}), absl::OkStatus());
  const Taken most = *TryTake("x", 2, 2);
  // Two are out and may come back.
  EXPECT_EQ(TryTake("x", 8, 8).status().code(), Code::kDeadlineExceeded);
  ASSERT_EQ(Complete(most.lease), absl::OkStatus());
  const Taken last = *TryTake("x", 8, 8);
  EXPECT_EQ(Ids(last), (std::vector<RowId>{rows[2]}));
  EXPECT_EQ(TryTake("x", 1, 1).status().code(), Code::kDeadlineExceeded);
  ASSERT_EQ(Complete(last.lease), absl::OkStatus());
  EXPECT_THAT(TryTake("x", 1, 1).status(), Fails(Code::kOutOfRange, {"sealed", "'x'"}));
}

TEST_P(DockConformance, WaitersSeeTheEndWhenAnotherWorkerFinishes) {
  Create();
  Register({.name = "x", .reads = {"a"}});
  PutFloats({{"a", {1}}});
  const Taken taken = Take("x", 1);
  absl::Status status;
  std::thread waiter([&] {
    status = dock_->Take({.partition = kPartition, .consumer = "x", .deadline = absl::InfiniteFuture()}).status();
  });
  clock_.AwaitWaiters(1);
  ASSERT_EQ(dock_->Seal(kPartition), absl::OkStatus());
  clock_.AwaitWaiters(1);
  ASSERT_EQ(Complete(taken.lease), absl::OkStatus());
  waiter.join();
  EXPECT_EQ(status.code(), Code::kOutOfRange);
}

TEST_P(DockConformance, ClearingEverythingUnseals) {
  Create();
  PutFloats({{"a", {1, 2}}});
  ASSERT_EQ(dock_->Seal(kPartition), absl::OkStatus());
  EXPECT_EQ(*ClearEverything(), 2);
  EXPECT_EQ(*ClearEverything(), 0);
  EXPECT_FALSE(Status().sealed);
  PutFloats({{"a", {1}}});
}

// ---- Release.

TEST_P(DockConformance, ARowGoesWhenAllWhomItMustOutliveAreDone) {
  Create({.retain_for = {"x", "late"}});
  Register({.name = "x", .reads = {"a"}});
  Register({.name = "other", .reads = {"a"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2}}});
  ASSERT_EQ(Complete(Take("x", 2).lease), absl::OkStatus());
  EXPECT_EQ(Status().rows, 2);
  Register({.name = "late", .reads = {"a"}});
  const Taken taken = Take("late", 2);
  ASSERT_EQ(Complete(taken.lease, {rows[1]}), absl::OkStatus());
  EXPECT_EQ(Status().rows, 1);
  // Others see the rows that are there, and hold none back.
  const Taken other = Take("other", 1);
  EXPECT_EQ(Ids(other), (std::vector<RowId>{rows[0]}));
  ASSERT_EQ(Complete(taken.lease), absl::OkStatus());
  EXPECT_EQ(Status().rows, 0);
  EXPECT_EQ(StatusOf("x").completed, 2);
  EXPECT_THAT(Complete(other.lease, {rows[0]}), Fails(Code::kFailedPrecondition, {"is over"}));
  EXPECT_THAT(Fill(rows, {{"b", {1, 2}}}), Fails(Code::kNotFound, {"row 0 is gone"}));
}

TEST_P(DockConformance, APutThatReleasesItsRowsSucceeds) {
  Create({.retain_for = {"x"}});
  Register({.name = "x", .reads = {"a"}, .writes = {"b"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2}}});
  EXPECT_EQ(Fill(rows, {{"b", {1, 2}}}, Take("x", 2).lease), absl::OkStatus());
  EXPECT_EQ(Status().rows, 0);
  EXPECT_THAT(Status().columns[1].ready_cells, 0);
}

TEST_P(DockConformance, AGroupThatWasReleasedMayBeStartedAnew) {
  Create({.group_size = 2, .retain_for = {"x"}});
  Register({.name = "x", .reads = {"a"}, .unit = Unit::kGroup});
  PutRequest put = Floats({{"a", {1, 2}}});
  put.groups = {5, 5};
  for (int again = 0; again < 2; ++again) {
    PutNew(put);
    ASSERT_EQ(Complete(Take("x", 1).lease), absl::OkStatus());
    EXPECT_EQ(Status().groups, 0);
    EXPECT_EQ(Status().incomplete_groups, 0);
  }
  EXPECT_EQ(dock_->Seal(kPartition), absl::OkStatus());
  EXPECT_EQ(TryTake("x", 1, 1).status().code(), Code::kOutOfRange);
}

// ---- Clear.

TEST_P(DockConformance, ClearedRowsAreGoneForEverybody) {
  Create();
  Register({.name = "x", .reads = {"a"}, .writes = {"b"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2, 3}}});
  const Taken taken = Take("x", 2);
  EXPECT_EQ(*Clear({rows[0], rows[2]}), 2);
  EXPECT_THAT(Fill({rows[0]}, {{"b", {1}}}, taken.lease), Fails(Code::kNotFound, {"row 0 is gone"}));
  EXPECT_EQ(taken.rows.Get<float>(0, "a")->front(), 1);
  EXPECT_EQ(StatusOf("x").leased, 1);
  EXPECT_EQ(StatusOf("x").takeable, 0);
  ASSERT_EQ(Fill({rows[1]}, {{"b", {2}}}, taken.lease), absl::OkStatus());
  EXPECT_EQ(StatusOf("x").done, 1);
  EXPECT_THAT(Clear({rows[1], rows[0]}).status(), Fails(Code::kNotFound, {"row 0 is gone"}));
  EXPECT_EQ(Status().rows, 1);
}

TEST_P(DockConformance, ClearsGroupsAndLetsClearedRowsBeReplaced) {
  Create({.group_size = 2});
  Register({.name = "x", .reads = {"a"}, .unit = Unit::kGroup});
  PutRequest put = Floats({{"a", {1, 2, 3, 4}}});
  put.groups = {5, 5, 6, 6};
  const std::vector<RowId> rows = PutNew(put);
  EXPECT_EQ(*Clear({rows[0]}), 1);
  EXPECT_EQ(StatusOf("x").takeable, 1);
  EXPECT_EQ(Status().incomplete_groups, 1);
  put = Floats({{"a", {9}}});
  put.groups = {5};
  const std::vector<RowId> again = PutNew(put);
  EXPECT_EQ(Ids(Take("x", 1)), (std::vector<RowId>{rows[1], again[0]}));
  EXPECT_EQ(*dock_->Clear({.partition = kPartition, .groups = {5, 6}}), 4);
  EXPECT_EQ(Status().groups, 0);
  EXPECT_EQ(StatusOf("x").leased, 0);
}

TEST_P(DockConformance, RefusesClearsThatMakeNoSense) {
  Create();
  const std::vector<RowId> rows = PutFloats({{"a", {1}}});
  EXPECT_EQ(dock_->Clear({.partition = kPartition}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(dock_->Clear({.partition = kPartition, .rows = rows, .everything = true}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(Clear({rows[0], rows[0]}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Status().rows, 1);
}

// ---- Memory and counters.

TEST_P(DockConformance, ViewsOutliveTheirRowsAndCountAsHeld) {
  Create();
  Register({.name = "x", .reads = {"a"}});
  PutFloats({{"a", std::vector<float>(100'000, 7)}});
  Taken taken = Take("x", 100'000);
  ASSERT_EQ(*ClearEverything(), 100'000);
  EXPECT_GE(Status().held_bytes, 400'000);
  EXPECT_EQ(taken.rows.ToColumn("a")->Values<float>()->back(), 7);
  taken = Taken();
  EXPECT_LT(Status().held_bytes, 10'000);
}

TEST_P(DockConformance, APartitionComesBackFromItsExport) {
  Create();
  Register({.name = "x", .reads = {"a"}});
  PutFloats({{"a", {1, 2, 3}}});
  const Taken taken = Take("x", 2);
  ASSERT_EQ(Complete(taken.lease, {1}), absl::OkStatus());
  const absl::StatusOr<std::string> image = dock_->ExportPartition(kPartition);
  ASSERT_EQ(image.status(), absl::OkStatus());
  EXPECT_EQ(dock_->ExportPartition("other").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(dock_->ImportPartition(*image).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(dock_->ImportPartition("").code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(dock_->DropPartition(kPartition), absl::OkStatus());
  ASSERT_EQ(dock_->ImportPartition(*image), absl::OkStatus());
  const Taken again = Take("x", 2);
  EXPECT_THAT(Ids(again), ElementsAre(0, 2));
  EXPECT_EQ(Read(2, "a"), 3);
}

TEST_P(DockConformance, ViewsOutliveTheDock) {
  Create();
  const Rows rows = *dock_->Fetch({.partition = kPartition, .rows = PutFloats({{"a", {1, 2}}}), .columns = {"a"}});
  dock_.reset();
  EXPECT_THAT(*rows.ToColumn("a")->Values<float>(), ElementsAre(1, 2));
}

TEST_P(DockConformance, MemoryDoesNotGrowWhileRowsComeAndGo) {
  Create({.retain_for = {"x"}});
  Register({.name = "x", .reads = {"a"}, .writes = {"b"}});
  constexpr int kCycles = 6'000;
  int64_t highest = 0, highest_at_a_tenth = 0;
  // A few rows are always there, as they are while stages work.
  std::deque<Taken> under_way;
  for (int cycle = 0; cycle < kCycles; ++cycle) {
    PutFloats({{"a", std::vector<float>(16)}});
    under_way.push_back(Take("x", 16));
    if (under_way.size() > 3) {
      const Taken taken = std::move(under_way.front());
      under_way.pop_front();
      ASSERT_EQ(Fill(Ids(taken), {{"b", std::vector<float>(16)}}, taken.lease), absl::OkStatus());
    }
    highest = std::max(highest, Status().held_bytes);
    if (cycle == kCycles / 10) highest_at_a_tenth = highest;
  }
  EXPECT_EQ(Status().rows, 3 * 16);
  EXPECT_LE(highest, highest_at_a_tenth + highest_at_a_tenth / 10);
}

TEST_P(DockConformance, CountersTellTheStateOfEveryConsumer) {
  Create();
  Register({.name = "x", .reads = {"a"}});
  Register({.name = "y", .reads = {"b"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2, 3, 4}}});
  const Taken taken = Take("x", 3);
  ASSERT_EQ(Complete(taken.lease, {rows[0]}), absl::OkStatus());
  ASSERT_EQ(Fill({rows[3]}, {{"b", {1}}}), absl::OkStatus());
  const PartitionStatus status = Status();
  EXPECT_EQ(status.rows, 4);
  EXPECT_EQ(status.columns[0].name, "a");
  EXPECT_EQ(status.columns[0].ready_cells, 4);
  EXPECT_EQ(status.columns[1].ready_cells, 1);
  const ConsumerStatus& x = status.consumers[0].status;
  EXPECT_EQ(status.consumers[0].name, "x");
  EXPECT_EQ(x.waiting, 0);
  EXPECT_EQ(x.ready, 1);
  EXPECT_EQ(x.leased, 2);
  EXPECT_EQ(x.done, 1);
  EXPECT_EQ(x.takeable, 1);
  const ConsumerStatus& y = status.consumers[1].status;
  EXPECT_EQ(y.waiting, 3);
  EXPECT_EQ(y.ready, 1);
}

}  // namespace tdock::dock
