// Leases: what is published under them, how they end; steps; consumers that go.
#include "absl/strings/str_cat.h"
#include "dock/testing/conformance.h"

namespace tdock::dock {

TEST_P(DockConformance, ATakeCanNameItsRows) {
  Create({});
  Register({.name = "x", .reads = {"a"}, .sampler = Sampler::kUniform});
  Register({.name = "groups", .reads = {"a"}, .unit = Unit::kGroup});
  const std::vector<RowId> rows = PutFloats({{"a", {0, 1, 2, 3}}});
  const RowId bare = PutFloats({{"b", {4}}})[0];
  const auto take = [&](std::vector<RowId> wanted, const char* consumer = "x") {
    return dock_->Take({.partition = kPartition, .consumer = consumer, .rows = std::move(wanted)});
  };
  const absl::StatusOr<Taken> taken = take({rows[3], rows[1]});
  ASSERT_EQ(taken.status(), absl::OkStatus());
  EXPECT_EQ(Ids(*taken), (std::vector<RowId>{rows[3], rows[1]}));
  EXPECT_EQ(taken->rows.Get<float>(0, "a")->front(), 3);
  EXPECT_THAT(take({rows[0], rows[1]}).status(), Fails(Code::kFailedPrecondition, {"row 1", "'x'", "is leased"}));
  EXPECT_THAT(take({bare}).status(), Fails(Code::kFailedPrecondition, {"row 4", "waits"}));
  EXPECT_EQ(StatusOf("x").ready, 2) << "a take that fails takes nothing";
  ASSERT_EQ(Complete(taken->lease), absl::OkStatus());
  EXPECT_THAT(take({rows[1]}).status(), Fails(Code::kFailedPrecondition, {"is done"}));
  EXPECT_EQ(take({rows[0], rows[0]}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(take({99}).status().code(), Code::kNotFound);
  EXPECT_THAT(take({rows[0]}, "groups").status(), Fails(Code::kInvalidArgument, {"'groups'", "whole groups"}));
}

TEST_P(DockConformance, APutUnderALeaseCompletesExactlyItsRows) {
  Create();
  Register({.name = "x", .reads = {"a"}, .writes = {"b"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2, 3}}});
  const Taken taken = Take("x", 3);
  EXPECT_EQ(taken.expires, clock_.Now() + absl::Minutes(10));
  ASSERT_EQ(Fill({rows[2], rows[0]}, {{"b", {30, 10}}}, taken.lease), absl::OkStatus());
  EXPECT_EQ(StatusOf("x").done, 2);
  EXPECT_EQ(StatusOf("x").leased, 1);
  EXPECT_EQ(Read(rows[2], "b"), 30);
  EXPECT_THAT(Fill({rows[0]}, {{"b", {1}}}, taken.lease),
              Fails(Code::kFailedPrecondition,
                    {absl::StrCat("row ", rows[0]), absl::StrCat("lease ", taken.lease), "not held"}));
  ASSERT_EQ(Fill({rows[1]}, {{"b", {20}}}, taken.lease), absl::OkStatus());
  EXPECT_EQ(StatusOf("x").completed, 3);
  EXPECT_THAT(Complete(taken.lease), Fails(Code::kFailedPrecondition, {"is over"}));
}

TEST_P(DockConformance, ALeaseOfAPartitionThatWasDroppedIsNoneOfTheNextOfItsName) {
  const auto take = [&] {
    Create();
    Register({.name = "x", .reads = {"a"}});
    PutFloats({{"a", {1}}});
    return Take("x", 1).lease;
  };
  const LeaseId before = take();
  ASSERT_EQ(dock_->DropPartition(kPartition), absl::OkStatus());
  EXPECT_NE(take(), before);
  EXPECT_THAT(Complete(before), Fails(Code::kFailedPrecondition, {"is over"}));
  EXPECT_EQ(StatusOf("x").leased, 1);
}

TEST_P(DockConformance, KeepStoresWithoutCompleting) {
  Create();
  Register({.name = "x", .reads = {"a"}, .writes = {"b", "c"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1}}});
  const Taken taken = Take("x", 1);
  FillRequest keep = Cells({{"b", {5}}});
  keep.rows = rows;
  keep.lease = taken.lease;
  keep.keep = true;
  ASSERT_EQ(Put(keep), absl::OkStatus());
  EXPECT_EQ(Read(rows[0], "b"), 5);
  EXPECT_EQ(StatusOf("x").leased, 1);
  ASSERT_EQ(Fill(rows, {{"c", {6}}}, taken.lease), absl::OkStatus());
  EXPECT_EQ(StatusOf("x").done, 1);
}

TEST_P(DockConformance, APutUnderALeaseNamesOnlyItsRowsAndItsConsumersColumns) {
  Create();
  Register({.name = "x", .reads = {"a"}, .writes = {"b"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2}}});
  const Taken taken = Take("x", 1);
  EXPECT_THAT(Fill({rows[0]}, {{"c", {1}}}, taken.lease), Fails(Code::kInvalidArgument, {"'c'", "writes 'b'"}));
  EXPECT_THAT(Fill({rows[0], rows[1]}, {{"b", {1, 2}}}, taken.lease), Fails(Code::kFailedPrecondition, {"row 1"}));
  FillRequest fresh = Cells({{"b", {1}}});
  fresh.lease = taken.lease;
  EXPECT_THAT(Put(fresh), Fails(Code::kInvalidArgument, {"rows"}));
  EXPECT_THAT(Fill({rows[0]}, {{"b", {1}}}, taken.lease + 1), Fails(Code::kNotFound, {"no lease"}));
  EXPECT_EQ(Status().columns[1].ready_cells, 0);
  EXPECT_EQ(StatusOf("x").leased, 1);
}

TEST_P(DockConformance, ReleasedRowsAreReadyAgainInTheirOldPlace) {
  Create();
  Register({.name = "x", .reads = {"a"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2, 3}}});
  const Taken taken = Take("x", 2);
  ASSERT_EQ(Release(taken.lease, {rows[0]}), absl::OkStatus());
  const Taken again = Take("x", 2);
  EXPECT_EQ(Ids(again), (std::vector<RowId>{rows[0], rows[2]}));
  EXPECT_EQ(again.rows.redeliveries(0), 0);
  EXPECT_NE(again.lease, taken.lease);
  ASSERT_EQ(Complete(taken.lease), absl::OkStatus());
  EXPECT_EQ(StatusOf("x").done, 1);
  EXPECT_EQ(Release(again.lease), absl::OkStatus());
  EXPECT_EQ(StatusOf("x").ready, 2);
}

TEST_P(DockConformance, RowsOfACrashedConsumerComeBackInTheirOldPlace) {
  Create();
  Register({.name = "x", .reads = {"a"}, .lease_duration = absl::Seconds(30)});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2, 3}}});
  const Taken crashed = Take("x", 2);
  ASSERT_EQ(Complete(crashed.lease, {rows[0]}), absl::OkStatus());
  clock_.Advance(absl::Seconds(29));
  EXPECT_EQ(StatusOf("x").ready, 1);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(StatusOf("x").ready, 2);
  EXPECT_EQ(StatusOf("x").expired, 1);
  const Taken taken = Take("x", 2);
  EXPECT_EQ(Ids(taken), (std::vector<RowId>{rows[1], rows[2]}));
  EXPECT_EQ(taken.rows.redeliveries(0), 1);
  EXPECT_EQ(taken.rows.redeliveries(1), 0);
}

TEST_P(DockConformance, AnExpiredLeaseIsRefusedEvenWhereNobodyTookItsRows) {
  Create();
  Register({.name = "x", .reads = {"a"}, .writes = {"b"}, .lease_duration = absl::Seconds(30)});
  const std::vector<RowId> rows = PutFloats({{"a", {1}}});
  const Taken taken = Take("x", 1);
  clock_.Advance(absl::Seconds(31));
  EXPECT_THAT(Fill(rows, {{"b", {1}}}, taken.lease), Fails(Code::kFailedPrecondition, {"expired"}));
  EXPECT_EQ(Complete(taken.lease).code(), Code::kFailedPrecondition);
  EXPECT_EQ(Release(taken.lease).code(), Code::kFailedPrecondition);
  EXPECT_EQ(Status().columns[1].ready_cells, 0);
  EXPECT_EQ(Ids(Take("x", 1)), rows);
}

TEST_P(DockConformance, ARenewedLeaseLastsFromThenOn) {
  Create();
  Register({.name = "x", .reads = {"a"}, .lease_duration = absl::Seconds(30)});
  PutFloats({{"a", {1}}});
  const Taken taken = Take("x", 1);
  clock_.Advance(absl::Seconds(20));
  EXPECT_EQ(*dock_->Renew(kPartition, taken.lease), clock_.Now() + absl::Seconds(30));
  clock_.Advance(absl::Seconds(29));
  EXPECT_EQ(StatusOf("x").leased, 1);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(StatusOf("x").ready, 1);
  EXPECT_THAT(dock_->Renew(kPartition, taken.lease).status(), Fails(Code::kFailedPrecondition, {"expired"}));
  EXPECT_THAT(dock_->Renew(kPartition, 9).status(), Fails(Code::kNotFound, {"no lease 9"}));
}

TEST_P(DockConformance, ARowThatIsLostTooOftenIsQuarantined) {
  Create();
  Register({.name = "x", .reads = {"a"}, .lease_duration = absl::Seconds(30), .max_deliveries = 2});
  Register({.name = "y", .reads = {"a"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2}}});
  ASSERT_EQ(dock_->Seal(kPartition), absl::OkStatus());
  ASSERT_EQ(Complete(Take("x", 2).lease, {rows[0]}), absl::OkStatus());
  for (int delivery = 0; delivery < 2; ++delivery) {
    clock_.Advance(absl::Seconds(30));
    if (delivery == 0) {
      EXPECT_EQ(Take("x", 1).rows.redeliveries(0), 1);
    }
  }
  EXPECT_EQ(StatusOf("x").quarantined, 1);
  EXPECT_EQ(StatusOf("x").ready, 0);
  EXPECT_EQ(StatusOf("y").ready, 2);
  // Nothing else can come.
  EXPECT_THAT(TryTake("x", 1, 1).status(),
              Fails(Code::kFailedPrecondition, {"1 rows", "quarantined", "expired 2 times", "drop them: 1"}));
  EXPECT_THAT(dock_->Requeue({.partition = kPartition, .consumer = "x", .rows = {rows[0]}}),
              Fails(Code::kFailedPrecondition, {"row 0", "not quarantined", "'x'"}));
  ASSERT_EQ(dock_->Requeue({.partition = kPartition, .consumer = "x"}), absl::OkStatus());
  const Taken again = Take("x", 1);
  EXPECT_EQ(again.rows.redeliveries(0), 0);
  ASSERT_EQ(Complete(again.lease), absl::OkStatus());
  EXPECT_EQ(TryTake("x", 1, 1).status().code(), Code::kOutOfRange);
}

TEST_P(DockConformance, AQuarantinedRowHoldsItsGroupBackUntilItIsRequeued) {
  Create({.group_size = 2});
  Register(
      {.name = "x", .reads = {"a"}, .unit = Unit::kGroup, .lease_duration = absl::Seconds(30), .max_deliveries = 1});
  PutRequest put = Floats({{"a", {1, 2}}});
  put.groups = {5, 5};
  const std::vector<RowId> rows = PutNew(put);
  const Taken lost = Take("x", 1);
  ASSERT_EQ(Release(lost.lease, {rows[0]}), absl::OkStatus());
  clock_.Advance(absl::Seconds(30));
  EXPECT_EQ(StatusOf("x").ready, 1);
  EXPECT_EQ(StatusOf("x").quarantined, 1);
  EXPECT_THAT(TryTake("x", 1, 1).status(),
              Fails(Code::kDeadlineExceeded, {"1 rows", "quarantined", "expired 1 times"}));
  ASSERT_EQ(dock_->Requeue({.partition = kPartition, .consumer = "x", .rows = {rows[1]}}), absl::OkStatus());
  EXPECT_EQ(Ids(Take("x", 1)), rows);
}

TEST_P(DockConformance, AWaiterGetsARowThatIsRequeued) {
  Create();
  Register({.name = "x", .reads = {"a"}, .lease_duration = absl::Seconds(30), .max_deliveries = 1});
  PutFloats({{"a", {1}}});
  Take("x", 1);
  clock_.Advance(absl::Seconds(30));
  absl::Status status;
  std::thread waiter([&] {
    status = dock_->Take({.partition = kPartition, .consumer = "x", .deadline = absl::InfiniteFuture()}).status();
  });
  clock_.AwaitWaiters(1);
  ASSERT_EQ(dock_->Requeue({.partition = kPartition, .consumer = "x"}), absl::OkStatus());
  waiter.join();
  EXPECT_EQ(status, absl::OkStatus());
}

TEST_P(DockConformance, DroppedRowsAreDoneForAll) {
  Create();
  Register({.name = "x", .reads = {"a"}});
  Register({.name = "y", .reads = {"b"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2, 3}}});
  const Taken taken = Take("x", 3);
  EXPECT_THAT(dock_->Drop({.partition = kPartition, .lease = taken.lease + 1}), Fails(Code::kNotFound, {"no lease"}));
  EXPECT_THAT(dock_->Drop({.partition = kPartition}), Fails(Code::kInvalidArgument, {"lease", "name", "rows"}));
  ASSERT_EQ(dock_->Drop({.partition = kPartition, .lease = taken.lease, .rows = {rows[1]}}), absl::OkStatus());
  EXPECT_THAT(Complete(taken.lease, {rows[1]}), Fails(Code::kFailedPrecondition, {"not held"}));
  ASSERT_EQ(Complete(taken.lease), absl::OkStatus());
  EXPECT_EQ(StatusOf("x").completed, 2);
  EXPECT_EQ(StatusOf("x").done, 3);
  EXPECT_EQ(StatusOf("y").done, 1);
  // Its cells may still come, and those who come late do not get it either.
  ASSERT_EQ(Fill(rows, {{"b", {1, 2, 3}}}), absl::OkStatus());
  EXPECT_EQ(StatusOf("y").done, 1);
  EXPECT_EQ(StatusOf("y").ready, 2);
  Register({.name = "late", .reads = {"a"}});
  EXPECT_EQ(Ids(Take("late", 2)), (std::vector<RowId>{rows[0], rows[2]}));
}

TEST_P(DockConformance, DroppingReleasesRowsThatWaitForConsumersToBeDone) {
  Create({.retain_for = {"x", "late"}});
  Register({.name = "x", .reads = {"a"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2}}});
  ASSERT_EQ(dock_->Drop({.partition = kPartition, .rows = {rows[0]}}), absl::OkStatus());
  EXPECT_EQ(Status().rows, 1);
  EXPECT_THAT(dock_->Drop({.partition = kPartition, .rows = {rows[0]}}), Fails(Code::kNotFound, {"row 0 is gone"}));
}

TEST_P(DockConformance, WhatIsTakenAtMostOnceIsDoneAtOnce) {
  Create({.retain_for = {"x"}});
  Register({.name = "x", .reads = {"a"}, .at_most_once = true});
  PutFloats({{"a", {1, 2, 3}}});
  const Taken taken = Take("x", 2);
  EXPECT_EQ(taken.lease, kNoLease);
  EXPECT_EQ(taken.expires, absl::InfiniteFuture());
  EXPECT_EQ(StatusOf("x").completed, 2);
  // They were released, and are still there to be seen.
  EXPECT_EQ(Status().rows, 1);
  EXPECT_EQ(taken.rows.Get<float>(1, "a")->front(), 2);
  EXPECT_EQ(dock_->RegisterConsumer(kPartition, {.name = "y", .at_most_once = true, .checkpointed = true}).code(),
            Code::kInvalidArgument);
}

TEST_P(DockConformance, ADroppedConsumerIsForgotten) {
  Create({.retain_for = {"x", "never", "y"}});
  Register({.name = "x", .reads = {"a"}});
  Register({.name = "y", .reads = {"a"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2, 3}}});
  ASSERT_EQ(Complete(Take("y", 2).lease), absl::OkStatus());
  const Taken held = Take("x", 3);
  EXPECT_EQ(Status().retain_for, (std::vector<std::string>{"x", "never", "y"}));
  ASSERT_EQ(dock_->DropConsumer(kPartition, "never"), absl::OkStatus());
  EXPECT_THAT(dock_->DropConsumer(kPartition, "never"), Fails(Code::kNotFound, {"'never'", "'x', 'y'"}));
  EXPECT_EQ(Status().rows, 3);
  ASSERT_EQ(dock_->DropConsumer(kPartition, "x"), absl::OkStatus());
  // Only y need have seen them now.
  EXPECT_EQ(Status().rows, 1);
  EXPECT_EQ(Complete(held.lease).code(), Code::kFailedPrecondition);
  EXPECT_EQ(TryTake("x", 1, 1).status().code(), Code::kNotFound);
  // Its name is free, also for something else.
  Register({.name = "x", .reads = {"b"}, .unit = Unit::kGroup});
  EXPECT_EQ(StatusOf("x").waiting, 1);
  ASSERT_EQ(dock_->DropConsumer(kPartition, "y"), absl::OkStatus());
  EXPECT_EQ(Status().rows, 1);
  ASSERT_EQ(Fill({rows[2]}, {{"b", {1}}}), absl::OkStatus());
  EXPECT_EQ(Ids(Take("x", 1)), std::vector<RowId>{rows[2]});
}

TEST_P(DockConformance, AWaiterLearnsThatItsConsumerWasDropped) {
  Create();
  Register({.name = "x", .reads = {"a"}});
  absl::Status status;
  std::thread waiter([&] {
    status = dock_->Take({.partition = kPartition, .consumer = "x", .deadline = absl::InfiniteFuture()}).status();
  });
  clock_.AwaitWaiters(1);
  ASSERT_EQ(dock_->DropConsumer(kPartition, "x"), absl::OkStatus());
  waiter.join();
  EXPECT_THAT(status, Fails(Code::kNotFound, {"'x'"}));
}

TEST_P(DockConformance, AWaitCanBeCancelled) {
  Create();
  Register({.name = "x", .reads = {"a"}});
  const std::vector<RowId> rows = PutFloats({{"b", {1}}});
  std::stop_source stop;
  absl::Status take, fetch;
  std::thread taker([&] {
    take = dock_
               ->Take({.partition = kPartition,
                       .consumer = "x",
                       .deadline = absl::InfiniteFuture(),
                       .cancel = stop.get_token()})
               .status();
  });
  std::thread fetcher([&] {
    fetch = dock_
                ->Fetch({.partition = kPartition,
                         .rows = rows,
                         .columns = {"a"},
                         .deadline = absl::InfiniteFuture(),
                         .cancel = stop.get_token()})
                .status();
  });
  clock_.AwaitWaiters(2);
  stop.request_stop();
  taker.join();
  fetcher.join();
  EXPECT_EQ(take.code(), Code::kCancelled);
  EXPECT_EQ(fetch.code(), Code::kCancelled);
  // What needs no wait is answered all the same.
  ASSERT_EQ(Fill(rows, {{"a", {1}}}), absl::OkStatus());
  EXPECT_EQ(dock_->Take({.partition = kPartition, .consumer = "x", .cancel = stop.get_token()}).status(),
            absl::OkStatus());
}

TEST_P(DockConformance, WhatIsNotCommittedCanBeRolledBack) {
  Create({.retain_for = {"trainer"}});
  Register({.name = "trainer", .reads = {"a"}, .checkpointed = true});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2, 3, 4}}});
  const auto complete = [&](LeaseId lease, int64_t step) {
    return dock_->Complete({.partition = kPartition, .lease = lease, .step = step});
  };
  EXPECT_THAT(complete(Take("trainer", 1).lease, kNoStep), Fails(Code::kInvalidArgument, {"'trainer'", "the step"}));
  ASSERT_EQ(complete(1, 0), absl::OkStatus());
  ASSERT_EQ(complete(Take("trainer", 1).lease, 1), absl::OkStatus());
  EXPECT_EQ(StatusOf("trainer").uncommitted, 2);
  EXPECT_EQ(Status().rows, 4);
  // What is committed is released, once.
  ASSERT_EQ(dock_->Commit({kPartition, "trainer", 0}), absl::OkStatus());
  ASSERT_EQ(dock_->Commit({kPartition, "trainer", 0}), absl::OkStatus());
  EXPECT_EQ(Status().rows, 3);
  EXPECT_EQ(StatusOf("trainer").committed_step, 0);
  const Taken held = Take("trainer", 2);
  EXPECT_THAT(complete(held.lease, 0),
              Fails(Code::kFailedPrecondition, {"'trainer'", "committed step 0", "under step 0"}));
  // Back to the weights of step 0: the row of step 1 comes again, and what was held is let go of.
  ASSERT_EQ(dock_->Rollback({kPartition, "trainer", 0}), absl::OkStatus());
  EXPECT_EQ(complete(held.lease, 2).code(), Code::kFailedPrecondition);
  const Taken again = Take("trainer", 3);
  EXPECT_EQ(Ids(again), (std::vector<RowId>{rows[1], rows[2], rows[3]}));
  ASSERT_EQ(complete(again.lease, 1), absl::OkStatus());
  ASSERT_EQ(dock_->Commit({kPartition, "trainer", 5}), absl::OkStatus());
  EXPECT_EQ(Status().rows, 0);
  EXPECT_THAT(dock_->Rollback({kPartition, "trainer", 4}), Fails(Code::kFailedPrecondition, {"committed step 5"}));
}

TEST_P(DockConformance, StepsAreForCheckpointedConsumers) {
  Create();
  Register({.name = "x", .reads = {"a"}, .writes = {"b"}});
  PutFloats({{"a", {1}}});
  const Taken taken = Take("x", 1);
  EXPECT_THAT(dock_->Complete({.partition = kPartition, .lease = taken.lease, .step = 1}),
              Fails(Code::kInvalidArgument, {"'x'", "not checkpointed"}));
  EXPECT_THAT(dock_->Commit({kPartition, "x", 1}), Fails(Code::kInvalidArgument, {"'x'", "not checkpointed"}));
  EXPECT_THAT(dock_->Rollback({kPartition, "x", 1}), Fails(Code::kInvalidArgument, {"'x'", "not checkpointed"}));
  EXPECT_THAT(dock_->Commit({kPartition, "z", 1}), Fails(Code::kNotFound, {"no consumer 'z'"}));
  FillRequest put = Cells({{"b", {1}}});
  put.rows = {0};
  put.step = 1;
  EXPECT_EQ(Put(put).code(), Code::kInvalidArgument);
}

TEST_P(DockConformance, InASealedPartitionWhatCannotComeIsNotWaitedFor) {
  Create({.group_size = 2});
  Register({.name = "x", .reads = {"a"}, .unit = Unit::kGroup});
  PutRequest put = Floats({{"a", {0, 1, 2, 3}}});
  put.groups = {5, 5, 6, 6};
  const std::vector<RowId> rows = PutNew(put);
  ASSERT_EQ(dock_->Seal(kPartition), absl::OkStatus());
  ASSERT_EQ(Clear({rows[0]}).status(), absl::OkStatus());
  // Group 5 will never be whole again.
  EXPECT_EQ(Ids(*TryTake("x", 2, 2)), (std::vector<RowId>{rows[2], rows[3]}));
  ASSERT_EQ(Complete(1), absl::OkStatus());
  EXPECT_THAT(TryTake("x", 1, 1).status(), Fails(Code::kFailedPrecondition, {"first group 5", "1 are gone"}));
}

TEST_P(DockConformance, AGroupRemembersRowsThatWereReleasedBeforeItWasWhole) {
  Create({.group_size = 2, .retain_for = {"x"}});
  Register({.name = "x", .reads = {"a"}});
  const auto put = [&](std::vector<GroupId> groups) {
    PutRequest request = Floats({{"a", std::vector<float>(groups.size())}});
    request.groups = std::move(groups);
    return Put(request);
  };
  ASSERT_EQ(put({5}), absl::OkStatus());
  ASSERT_EQ(Complete(Take("x", 1).lease), absl::OkStatus());
  EXPECT_EQ(Status().rows, 0);
  EXPECT_THAT(dock_->Seal(kPartition), Fails(Code::kFailedPrecondition, {"group 5 with 1 of 2 rows"}));
  EXPECT_THAT(put({5, 5}), Fails(Code::kInvalidArgument, {"group 5", "takes 2", "has 1", "given 2"}));
  ASSERT_EQ(put({5}), absl::OkStatus());
  ASSERT_EQ(Complete(Take("x", 1).lease), absl::OkStatus());
  EXPECT_EQ(Status().groups, 0);
  // It can be forgotten before it is whole.
  ASSERT_EQ(put({6}), absl::OkStatus());
  ASSERT_EQ(Complete(Take("x", 1).lease), absl::OkStatus());
  EXPECT_EQ(*dock_->Clear({.partition = kPartition, .groups = {6}}), 0);
  EXPECT_EQ(Status().groups, 0);
  EXPECT_EQ(dock_->Seal(kPartition), absl::OkStatus());
}

TEST_P(DockConformance, ALeaseMayLastForEver) {
  Create();
  Register({.name = "x", .reads = {"a"}, .lease_duration = absl::InfiniteDuration()});
  PutFloats({{"a", {1}}});
  const Taken taken = Take("x", 1);
  clock_.Advance(absl::Hours(1'000'000));
  EXPECT_EQ(Complete(taken.lease), absl::OkStatus());
}

}  // namespace tdock::dock
