// Budgets.
#include <thread>

#include "dock/testing/conformance.h"

namespace tdock::dock {

TEST_P(DockConformance, NewRowsWaitForRoomInTheOrderInWhichTheyCame) {
  Create({.retain_for = {"x"}, .max_rows = 4});
  Register({.name = "x", .reads = {"a"}});
  PutFloats({{"a", {1, 2, 3}}});
  EXPECT_THAT(Put(Floats({{"a", {4, 5}}})),
              Fails(Code::kDeadlineExceeded, {"room for 2 rows", "3 of max_rows 4 exist"}));
  EXPECT_THAT(Put(Floats({{"a", {1, 2, 3, 4, 5}}})), Fails(Code::kResourceExhausted, {"5 rows", "max_rows is 4"}));
  PutRequest two = Floats({{"a", {4, 5}}}), one = Floats({{"a", {6}}});
  two.deadline = one.deadline = absl::InfiniteFuture();
  absl::StatusOr<PutResult> first, second;
  std::thread feeder([&] { first = dock_->Put(two); });
  clock_.AwaitWaiters(1);
  // There is room for one row, and it is not its turn.
  std::thread late([&] { second = dock_->Put(one); });
  clock_.AwaitWaiters(2);
  EXPECT_EQ(Status().rows, 3);
  // Who is at work can always finish.
  ASSERT_EQ(Fill({0}, {{"b", {1}}}), absl::OkStatus());
  ASSERT_EQ(Complete(Take("x", 1).lease), absl::OkStatus());
  feeder.join();
  EXPECT_EQ(first.status(), absl::OkStatus());
  EXPECT_EQ(Status().rows, 4);
  clock_.AwaitWaiters(1);
  ASSERT_EQ(Complete(Take("x", 1).lease), absl::OkStatus());
  late.join();
  EXPECT_EQ(second.status(), absl::OkStatus());
  EXPECT_EQ(Status().rows, 4);
}

TEST_P(DockConformance, GroupsAreLetInWhole) {
  Create({.group_size = 2, .max_rows = 4});
  const auto put = [&](std::vector<GroupId> groups) {
    PutRequest request = Floats({{"a", std::vector<float>(groups.size())}});
    request.groups = std::move(groups);
    return Put(request).code();
  };
  EXPECT_EQ(put({1}), Code::kOk);
  EXPECT_EQ(put({2}), Code::kOk);
  // The rest of both has its place.
  EXPECT_EQ(put({3}), Code::kDeadlineExceeded);
  EXPECT_EQ(put({1, 2}), Code::kOk);
  EXPECT_EQ(put({3}), Code::kDeadlineExceeded);
  ASSERT_EQ(dock_->Clear({.partition = kPartition, .groups = {1}}).status(), absl::OkStatus());
  EXPECT_EQ(put({3, 3}), Code::kOk);
}

TEST_P(DockConformance, BytesThatViewsHoldCount) {
  constexpr size_t kFloats = 1 << 18;  // 1 MiB
  PutRequest put{.partition = kPartition};
  ASSERT_EQ(put.batch.Add("a", Column::FromValues<float>(std::vector<float>(kFloats), {kFloats})), absl::OkStatus());
  Create({.columns = {{"a", ColumnType::Dense(DType::kF32, {kFloats})}}, .max_bytes = 5 << 19});
  ASSERT_EQ(dock_->Put(put).status(), absl::OkStatus());
  ASSERT_EQ(dock_->Put(put).status(), absl::OkStatus());
  Rows view = *dock_->Fetch({.partition = kPartition, .rows = {0, 1}, .columns = {"a"}});
  ASSERT_EQ(dock_->Clear({.partition = kPartition, .everything = true}).status(), absl::OkStatus());
  EXPECT_THAT(dock_->Put(put).status(), Fails(Code::kDeadlineExceeded, {"held"}));
  put.deadline = absl::InfiniteFuture();
  absl::Status status;
  std::thread feeder([&] { status = dock_->Put(put).status(); });
  clock_.AwaitWaiters(1);
  view = Rows();
  feeder.join();
  EXPECT_EQ(status, absl::OkStatus());
}

TEST_P(DockConformance, RowsHaveARightToTheBytesThatTheyDoNotHaveYet) {
  Create({.max_bytes = 1 << 20, .row_bytes = 1 << 18});
  EXPECT_EQ(Put(Floats({{"a", {1, 2, 3}}})), absl::OkStatus());
  EXPECT_THAT(Put(Floats({{"a", {4, 5}}})), Fails(Code::kDeadlineExceeded, {"reserved"}));
  EXPECT_THAT(Put(Floats({{"a", {1, 2, 3, 4, 5}}})), Fails(Code::kResourceExhausted, {"max_bytes is 1048576"}));
}

TEST_P(DockConformance, WhatOnlyACommitCanFreeIsNotWaitedFor) {
  Create({.retain_for = {"trainer"}, .max_rows = 2});
  Register({.name = "trainer", .reads = {"a"}, .checkpointed = true});
  PutFloats({{"a", {1, 2}}});
  ASSERT_EQ(dock_->Complete({.partition = kPartition, .lease = Take("trainer", 2).lease, .step = 3}), absl::OkStatus());
  PutRequest put = Floats({{"a", {3}}});
  put.deadline = absl::InfiniteFuture();
  EXPECT_THAT(Put(put), Fails(Code::kFailedPrecondition, {"consumer 'trainer' commits", "2 rows"}));
  ASSERT_EQ(dock_->Commit({kPartition, "trainer", 3}), absl::OkStatus());
  EXPECT_EQ(Put(put), absl::OkStatus());
}

TEST_P(DockConformance, ATakeOfMoreThanTheBudgetLetsInFailsInsteadOfWaiting) {
  Create({.retain_for = {"x"}, .max_rows = 4});
  Register({.name = "x", .reads = {"a"}});
  PutFloats({{"a", {1, 2, 3, 4}}});
  absl::Status take, put;
  std::thread taker([&] {
    take =
        dock_->Take({.partition = kPartition, .consumer = "x", .min = 5, .max = 5, .deadline = absl::InfiniteFuture()})
            .status();
  });
  clock_.AwaitWaiters(1);
  std::stop_source stop;
  PutRequest more = Floats({{"a", {5}}});
  more.deadline = absl::InfiniteFuture();
  more.cancel = stop.get_token();
  std::thread feeder([&] { put = Put(more); });
  taker.join();
  EXPECT_THAT(take, Fails(Code::kFailedPrecondition, {"waits for 5 rows and can have 4", "max_rows of 4"}));
  clock_.AwaitWaiters(1);
  stop.request_stop();
  feeder.join();
  EXPECT_EQ(put.code(), Code::kCancelled);
}

TEST_P(DockConformance, ASealEndsTheWaitForRoom) {
  Create({.max_rows = 1});
  PutFloats({{"a", {1}}});
  PutRequest more = Floats({{"a", {2}}});
  more.deadline = absl::InfiniteFuture();
  absl::Status status;
  std::thread feeder([&] { status = Put(more); });
  clock_.AwaitWaiters(1);
  ASSERT_EQ(dock_->Seal(kPartition), absl::OkStatus());
  feeder.join();
  EXPECT_THAT(status, Fails(Code::kFailedPrecondition, {"sealed"}));
}

}  // namespace tdock::dock
