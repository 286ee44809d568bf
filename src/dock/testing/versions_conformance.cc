// Versions of the weights, rows that are sent back, unfinished responses.
#include "dock/testing/conformance.h"

namespace tdock::dock {

TEST_P(DockVersions, PublishedVersionsRise) {
  Start({});
  EXPECT_EQ(Status().weights_version, kNoWeightsVersion);
  EXPECT_EQ(Publish(3), absl::OkStatus());
  EXPECT_EQ(Publish(3), absl::OkStatus());
  EXPECT_THAT(Publish(2), Fails(Code::kFailedPrecondition, {"version 2", "lower than 3", "'train'"}));
  EXPECT_EQ(Publish(-1).code(), Code::kInvalidArgument);
  EXPECT_EQ(Status().weights_version, 3);
  EXPECT_EQ(dock_->PublishWeights("other", 1).code(), Code::kNotFound);
  EXPECT_THAT(dock_->RegisterConsumer(kPartition, {.name = "y", .max_version_lag = -1}),
              Fails(Code::kInvalidArgument, {"'y'", "max_version_lag of -1"}));
  EXPECT_THAT(dock_->RegisterConsumer(kPartition, {.name = "trainer", .reads = {"b", "c"}, .max_version_lag = 5}),
              Fails(Code::kAlreadyExists, {"max_version_lag"}));
}

TEST_P(DockVersions, WhatIsTooOldIsSentBackToItsWriterWithAllThatCameFromIt) {
  Start({.max_version_lag = 1});
  const std::vector<RowId> old = Roll(2, 1), fresh = Roll(2, 2);
  ASSERT_EQ(Publish(2), absl::OkStatus());
  EXPECT_EQ(StatusOf("trainer").takeable, 4);
  ASSERT_EQ(Publish(3), absl::OkStatus());
  const Taken taken = Take("trainer", 2);
  EXPECT_EQ(Ids(taken), fresh);
  EXPECT_EQ(StatusOf("trainer").sent_back, 2);
  EXPECT_EQ(StatusOf("trainer").waiting, 2);
  EXPECT_EQ(StatusOf("rollout").reset, 2);
  EXPECT_EQ(StatusOf("reward").reset, 2);
  EXPECT_EQ(StatusOf("trainer").reset, 0) << "it had not taken them";

  const Taken again = Take("rollout", 2);
  EXPECT_EQ(Ids(again), old);
  EXPECT_EQ(again.rows.age(0), 1);
  EXPECT_EQ(again.rows.epoch(0), 1u);
  EXPECT_FALSE(again.rows.Has(0, 1)) << "the old response is gone";
  EXPECT_EQ(Respond(again, {3, 3}, 3), absl::OkStatus());
  EXPECT_EQ(TryTake("trainer", 1, 1).status().code(), Code::kDeadlineExceeded) << "its reward is gone too";
  Score(2);
  EXPECT_EQ(Ids(Take("trainer", 2)), old);
}

TEST_P(DockVersions, WhoReadAnOldCellWithoutWaitingForItHasTheRowAgain) {
  Start({.max_version_lag = 0});
  Register({.name = "log", .reads = {"a"}, .reads_optional = {"b"}});
  Roll(1, 1);
  ASSERT_EQ(Complete(Take("log", 1).lease), absl::OkStatus());
  ASSERT_EQ(Publish(2), absl::OkStatus());
  EXPECT_EQ(TryTake("trainer", 1, 1).status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(StatusOf("log").reset, 1);
  EXPECT_EQ(StatusOf("log").ready, 1);
}

TEST_P(DockVersions, ARandomTakeHandsOutOnlyWhatIsFresh) {
  Start({.sampler = Sampler::kUniform, .max_version_lag = 0});
  Roll(20, 1);
  std::vector<RowId> fresh = Roll(20, 2);
  ASSERT_EQ(Publish(2), absl::OkStatus());
  std::vector<RowId> taken = Ids(Take("trainer", 15));
  const std::vector<RowId> rest = Ids(Take("trainer", 5));
  taken.insert(taken.end(), rest.begin(), rest.end());
  EXPECT_THAT(taken, testing::UnorderedElementsAreArray(fresh));
  EXPECT_EQ(TryTake("trainer", 1, 40).status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(StatusOf("trainer").sent_back, 20);
}

TEST_P(DockVersions, RowsThatAreNamedAreJudgedToo) {
  Start({.max_version_lag = 0});
  const std::vector<RowId> rows = Roll(1, 1);
  ASSERT_EQ(Publish(2), absl::OkStatus());
  EXPECT_THAT(dock_->Take({.partition = kPartition, .consumer = "trainer", .rows = rows}).status(),
              Fails(Code::kFailedPrecondition, {"row 0", "waits"}));
  EXPECT_EQ(StatusOf("trainer").sent_back, 1);
}

TEST_P(DockVersions, WhatIsTooOldIsDroppedForAll) {
  Start({.max_version_lag = 0, .stale = Stale::kDrop}, Unit::kRow, {.retain_for = {"trainer"}});
  Roll(2, 1);
  const std::vector<RowId> fresh = Roll(1, 2);
  ASSERT_EQ(Publish(2), absl::OkStatus());
  EXPECT_EQ(Ids(Take("trainer", 1)), fresh);
  EXPECT_EQ(StatusOf("trainer").stale_dropped, 2);
  EXPECT_EQ(Status().rows, 1);
}

TEST_P(DockVersions, CellsWithoutAVersionAndPartitionsWithoutOneHaveNoAge) {
  Start({.max_version_lag = 0});
  Roll(1, kNoWeightsVersion);
  Roll(1, 1);
  Take("trainer", 1);
  Take("trainer", 1);
  Roll(1, kNoWeightsVersion);
  ASSERT_EQ(Publish(1'000'000), absl::OkStatus());
  Take("trainer", 1);
  EXPECT_EQ(StatusOf("trainer").sent_back, 0);
}

TEST_P(DockVersions, AGroupGoesBackAsAWhole) {
  for (const bool writer_takes_groups : {false, true}) {
    Start({.unit = writer_takes_groups ? Unit::kRow : Unit::kGroup, .max_version_lag = 0},
          writer_takes_groups ? Unit::kGroup : Unit::kRow);
    PutRequest prompts = Floats({{"a", {1, 2, 3, 4}}});
    prompts.groups = {5, 5, 6, 6};
    prompts.group_size = 2;
    const std::vector<RowId> rows = PutNew(prompts);
    const Taken first = Take("rollout", writer_takes_groups ? 2 : 4);
    ASSERT_EQ(Respond(first, {3}, 1, false, {rows[0]}), absl::OkStatus());
    ASSERT_EQ(Respond(first, {3, 3, 3}, 2, false, {rows[1], rows[2], rows[3]}), absl::OkStatus());
    Score(4);
    ASSERT_EQ(Publish(2), absl::OkStatus());
    const Taken taken = Take("trainer", writer_takes_groups ? 2 : 1);
    EXPECT_EQ(Ids(taken), (std::vector<RowId>{rows[2], rows[3]}));
    const Taken again = Take("rollout", writer_takes_groups ? 1 : 2);
    EXPECT_EQ(Ids(again), (std::vector<RowId>{rows[0], rows[1]}));
    EXPECT_EQ(again.rows.epoch(1), 1u);
    ASSERT_EQ(dock_->DropPartition(kPartition), absl::OkStatus());
  }
}

TEST_P(DockVersions, ResultsMadeFromWhatWasSentBackAreRefused) {
  Start({.max_version_lag = 0});
  Register({.name = "other", .reads = {"b"}, .writes = {"c"}});
  const std::vector<RowId> rows = Roll(1, 1);
  const Taken held = Take("other", 1);
  ASSERT_EQ(Publish(2), absl::OkStatus());
  EXPECT_EQ(TryTake("trainer", 1, 1).status().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(Fill(rows, {{"c", {9}}}, held.lease), Fails(Code::kFailedPrecondition));
  FillRequest late = Cells({{"c", {9}}});
  late.rows = rows;
  late.epochs = {held.rows.epoch(0)};
  EXPECT_THAT(Put(late), Fails(Code::kFailedPrecondition, {"row 0", "of epoch 1", "for epoch 0", "sent back"}));
  late.epochs = {1, 1};
  EXPECT_EQ(Put(late).code(), Code::kInvalidArgument);
  late.epochs = {1};
  EXPECT_EQ(Put(late), absl::OkStatus());
}

TEST_P(DockVersions, WhatNobodyWritesCannotBeSentBack) {
  Create({});
  Register({.name = "trainer", .reads = {"a"}, .max_version_lag = 0});
  PutRequest put = Floats({{"a", {1}}});
  put.weights_version = 1;
  PutNew(put);
  ASSERT_EQ(Publish(2), absl::OkStatus());
  EXPECT_THAT(TryTake("trainer", 1, 1).status(),
              Fails(Code::kFailedPrecondition, {"column 'a'", "row 0", "no registered"}))
      << "instead of waiting for ever";
  EXPECT_EQ(StatusOf("trainer").ready, 1);
}

TEST_P(DockVersions, AnUnfinishedResponseComesBackOneAgeOlderAndOldestFirst) {
  Start({});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2, 3, 4}}});
  const Taken first = Take("rollout", 2);
  ASSERT_EQ(Respond(first, {5}, 1, /*partial=*/true, {rows[1]}), absl::OkStatus());
  ASSERT_EQ(Release(first.lease), absl::OkStatus());
  EXPECT_EQ(StatusOf("rollout").unfinished, 1);
  EXPECT_EQ(StatusOf("reward").ready, 0) << "nobody else sees it";
  const Taken second = Take("rollout", 4);
  EXPECT_EQ(Ids(second), (std::vector<RowId>{rows[1], rows[0], rows[2], rows[3]}));
  EXPECT_EQ(second.rows.age(0), 1);
  EXPECT_EQ(second.rows.epoch(0), 0u) << "nothing was taken away";
  EXPECT_EQ(second.rows.age(1), 0);
  EXPECT_TRUE(second.rows.cell(0, 1).partial);
  ASSERT_EQ(Respond(second, {6}, 1, true, {rows[3]}), absl::OkStatus());
  ASSERT_EQ(Respond(second, {8}, 1, true, {rows[1]}), absl::OkStatus());
  ASSERT_EQ(Release(second.lease), absl::OkStatus());
  EXPECT_EQ(Ids(Take("rollout", 4)), (std::vector<RowId>{rows[1], rows[3], rows[0], rows[2]}));
  const absl::StatusOr<ListResult> listed = dock_->List({.partition = kPartition});
  EXPECT_EQ(listed->rows[1].age, 2);
}

TEST_P(DockVersions, RowsAreAsOldAsTheOldestOfTheirGroup) {
  Start({});
  PutRequest prompts = Floats({{"a", {1, 2, 3, 4}}});
  prompts.groups = {5, 5, 6, 6};
  prompts.group_size = 2;
  const std::vector<RowId> rows = PutNew(prompts);
  const Taken first = Take("rollout", 4);
  ASSERT_EQ(Respond(first, {5}, 1, true, {rows[3]}), absl::OkStatus());
  ASSERT_EQ(Release(first.lease), absl::OkStatus());
  const Taken second = Take("rollout", 3);
  EXPECT_EQ(Ids(second), (std::vector<RowId>{rows[2], rows[3], rows[0]}));
  EXPECT_EQ(second.rows.age(0), 0) << "its own";
}

TEST_P(DockVersions, AResumedResponseKeepsItsFirstVersionAndTellsThoseOfItsPieces) {
  Start({.max_version_lag = 1});
  const RowId row = PutFloats({{"a", {1}}})[0];
  ASSERT_EQ(Respond(Take("rollout", 1), {4}, 1, true), absl::OkStatus());
  const Taken second = Take("rollout", 1);
  EXPECT_EQ(*second.rows.Pieces(0, "b"), (std::vector<Piece>{{4, 1}}));
  ASSERT_EQ(Respond(second, {4}, 2, true), absl::OkStatus());  // not one more token
  ASSERT_EQ(Respond(Take("rollout", 1), {6}, 2, true), absl::OkStatus());
  const Taken last = Take("rollout", 1);
  EXPECT_EQ(*last.rows.Pieces(0, "b"), (std::vector<Piece>{{4, 1}, {6, 2}}));
  EXPECT_EQ(*last.rows.WeightsVersion(0, "b"), 1);
  ASSERT_EQ(Respond(last, {9}, 3), absl::OkStatus());
  EXPECT_EQ(PiecesOf(row), (std::vector<Piece>{{4, 1}, {6, 2}, {9, 3}}));
  Score(1);
  ASSERT_EQ(Publish(2), absl::OkStatus());
  const absl::StatusOr<Taken> taken = TryTake("trainer", 1, 1);
  ASSERT_EQ(taken.status(), absl::OkStatus());
  EXPECT_EQ(*taken->rows.WeightsVersion(0, "b"), 1);
  ASSERT_EQ(Release(taken->lease), absl::OkStatus());
  ASSERT_EQ(Publish(3), absl::OkStatus());
  EXPECT_EQ(TryTake("trainer", 1, 1).status().code(), Code::kDeadlineExceeded) << "its first piece is too old";
  EXPECT_EQ(StatusOf("trainer").sent_back, 1);
}

TEST_P(DockVersions, AReplacedCellIsNewAsAWhole) {
  Start({});
  const RowId row = PutFloats({{"a", {1}}})[0];
  ASSERT_EQ(Respond(Take("rollout", 1), {4}, 1, true), absl::OkStatus());
  ASSERT_EQ(Respond(Take("rollout", 1), {6}, 2), absl::OkStatus());
  FillRequest put{.partition = kPartition, .rows = {row}};
  ASSERT_EQ(put.batch.Add("b", Column::FromRows<int64_t>({{1, 2}})), absl::OkStatus());
  put.overwrite = true;
  put.weights_version = 5;
  ASSERT_EQ(Put(put), absl::OkStatus());
  EXPECT_EQ(PiecesOf(row), (std::vector<Piece>{{2, 5}}));
}

TEST_P(DockVersions, RollingBackSendsBackWhatLaterWeightsMade) {
  Start({.checkpointed = true});
  const std::vector<RowId> rows = Roll(3, 1);
  const std::vector<RowId> later = Roll(1, 2);
  ASSERT_EQ(Publish(2), absl::OkStatus());
  const Taken taken = Take("trainer", 4);
  ASSERT_EQ(dock_->Complete({kPartition, taken.lease, {rows[0]}, 1}), absl::OkStatus());
  ASSERT_EQ(dock_->Commit({kPartition, "trainer", 1}), absl::OkStatus());
  ASSERT_EQ(dock_->Complete({kPartition, taken.lease, {rows[1], later[0]}, 2}), absl::OkStatus());
  EXPECT_THAT(dock_->Rollback({kPartition, "trainer", 1, 3}), Fails(Code::kFailedPrecondition, {"3", "2"}));
  ASSERT_EQ(dock_->Rollback({kPartition, "trainer", 1, 1}), absl::OkStatus());
  EXPECT_EQ(Status().weights_version, 1);
  EXPECT_EQ(Ids(Take("trainer", 2)), (std::vector<RowId>{rows[1], rows[2]})) << "each has effect once";
  EXPECT_EQ(Ids(Take("rollout", 1)), later);
  EXPECT_EQ(StatusOf("trainer").done, 1);
}

TEST_P(DockVersions, AStepThatCountedARowBeforeItWasSentBackDoesNotCommitItAfterwards) {
  Start({.checkpointed = true}, Unit::kRow, {.retain_for = {"trainer"}});
  Register({.name = "strict", .reads = {"b"}, .max_version_lag = 0});
  const std::vector<RowId> rows = Roll(1, 1);
  ASSERT_EQ(dock_->Complete({kPartition, Take("trainer", 1).lease, {}, 1}), absl::OkStatus());
  ASSERT_EQ(Publish(2), absl::OkStatus());
  EXPECT_EQ(TryTake("strict", 1, 1).status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(StatusOf("trainer").uncommitted, 0);
  ASSERT_EQ(Respond(Take("rollout", 1), {3}, 2), absl::OkStatus());
  Score(1);
  ASSERT_EQ(dock_->Complete({kPartition, Take("trainer", 1).lease, {}, 2}), absl::OkStatus());
  ASSERT_EQ(dock_->Commit({kPartition, "trainer", 1}), absl::OkStatus());
  EXPECT_EQ(StatusOf("trainer").uncommitted, 1);
  EXPECT_EQ(Status().rows, 1);
  ASSERT_EQ(dock_->Commit({kPartition, "trainer", 2}), absl::OkStatus());
  EXPECT_EQ(Status().rows, 0);
}

TEST_P(DockVersions, StepsOfAConsumerThatReadsOtherColumnsAreLeftAlone) {
  Start({.max_version_lag = 0}, Unit::kRow, {.retain_for = {"other"}});
  Register({.name = "other", .reads = {"a"}, .checkpointed = true});
  const std::vector<RowId> rows = Roll(2, 1);
  ASSERT_EQ(dock_->Complete({kPartition, Take("other", 1).lease, {}, 1}), absl::OkStatus());
  ASSERT_EQ(dock_->Complete({kPartition, Take("other", 1).lease, {}, 2}), absl::OkStatus());
  ASSERT_EQ(Publish(2), absl::OkStatus());
  EXPECT_EQ(TryTake("trainer", 2, 2).status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(StatusOf("trainer").sent_back, 2);
  ASSERT_EQ(dock_->Commit({kPartition, "other", 1}), absl::OkStatus());
  EXPECT_EQ(Status().rows, 1) << "the row of step 1 is released";
  ASSERT_EQ(dock_->Rollback({kPartition, "other", 1}), absl::OkStatus());
  EXPECT_EQ(Ids(Take("other", 1)), std::vector<RowId>{rows[1]});
}

TEST_P(DockVersions, ACommitTakesNoVersionOfTheWeights) {
  Start({.checkpointed = true});
  Roll(1, 1);
  ASSERT_EQ(dock_->Complete({kPartition, Take("trainer", 1).lease, {}, 1}), absl::OkStatus());
  EXPECT_THAT(dock_->Commit({kPartition, "trainer", 1, 1}),
              Fails(Code::kInvalidArgument, {"weights version 1", "rollbacks"}));
  EXPECT_EQ(StatusOf("trainer").committed_step, kNoStep);
  EXPECT_EQ(StatusOf("trainer").uncommitted, 1);
  EXPECT_EQ(Status().weights_version, kNoWeightsVersion);
}

TEST_P(DockVersions, WhatIsCommittedStaysDoneForItsConsumer) {
  Start({.checkpointed = true});
  Register({.name = "strict", .reads = {"b"}, .max_version_lag = 0});
  Roll(1, 1);
  ASSERT_EQ(dock_->Complete({kPartition, Take("trainer", 1).lease, {}, 1}), absl::OkStatus());
  ASSERT_EQ(dock_->Commit({kPartition, "trainer", 1}), absl::OkStatus());
  ASSERT_EQ(Publish(2), absl::OkStatus());
  EXPECT_EQ(TryTake("strict", 1, 1).status().code(), Code::kDeadlineExceeded);
  ASSERT_EQ(Respond(Take("rollout", 1), {3}, 2), absl::OkStatus());
  Score(1);
  EXPECT_EQ(StatusOf("trainer").done, 1);
  EXPECT_EQ(Take("strict", 1).rows.size(), 1u);
}

TEST_P(DockVersions, TheRestOfAGroupThatIsNotWholeAnyMoreIsDropped) {
  for (const bool retained : {true, false}) {
    PartitionOptions options;
    if (retained) options.retain_for = {"trainer"};
    Start({.max_version_lag = 0}, Unit::kGroup, options);
    PutRequest prompts = Floats({{"a", {1, 2}}});
    prompts.groups = {5, 5};
    prompts.group_size = 2;
    const std::vector<RowId> rows = PutNew(prompts);
    ASSERT_EQ(Respond(Take("rollout", 1), {3, 3}, 1), absl::OkStatus());
    Score(2);
    if (retained) {
      ASSERT_EQ(Complete(Take("trainer", 1).lease), absl::OkStatus());
    } else {
      ASSERT_EQ(dock_->Drop({.partition = kPartition, .rows = {rows[0]}}), absl::OkStatus());
    }
    ASSERT_EQ(Publish(2), absl::OkStatus());
    ASSERT_EQ(dock_->Seal(kPartition), absl::OkStatus());
    EXPECT_EQ(TryTake("trainer", 1, 1).status().code(), Code::kOutOfRange) << "instead of waiting for ever";
    EXPECT_EQ(StatusOf("trainer").stale_dropped, 1);
    EXPECT_EQ(StatusOf("trainer").sent_back, 0);
    ASSERT_EQ(dock_->DropPartition(kPartition), absl::OkStatus());
  }
}

TEST_P(DockVersions, AGroupIsDroppedAsAWhole) {
  Start({.unit = Unit::kGroup, .max_version_lag = 0, .stale = Stale::kDrop});
  PutRequest prompts = Floats({{"a", {1, 2}}});
  prompts.groups = {5, 5};
  prompts.group_size = 2;
  const std::vector<RowId> rows = PutNew(prompts);
  const Taken taken = Take("rollout", 2);
  ASSERT_EQ(Respond(taken, {3}, 1, false, {rows[0]}), absl::OkStatus());
  ASSERT_EQ(Respond(taken, {3}, 2, false, {rows[1]}), absl::OkStatus());
  Score(2);
  ASSERT_EQ(Publish(2), absl::OkStatus());
  EXPECT_EQ(TryTake("trainer", 1, 1).status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(StatusOf("trainer").stale_dropped, 2);
  EXPECT_EQ(StatusOf("trainer").done, 2);
}

TEST_P(DockVersions, AResponseThatIsBegunAnewDoesNotGoOnFromAPiece) {
  Start({});
  const RowId row = PutFloats({{"a", {1}}})[0];
  ASSERT_EQ(Respond(Take("rollout", 1), {4}, 1, true), absl::OkStatus());
  FillRequest put{.partition = kPartition, .rows = {row}, .lease = Take("rollout", 1).lease, .overwrite = true};
  ASSERT_EQ(put.batch.Add("b", Column::FromRows<int64_t>({{1, 2, 3, 4, 5}})), absl::OkStatus());
  put.weights_version = 5;
  ASSERT_EQ(Put(put), absl::OkStatus());
  EXPECT_EQ(PiecesOf(row), (std::vector<Piece>{{5, 5}}));
}

TEST_P(DockVersions, CellsThatAreMadeManyTimesDoNotCountAsManyRowsForTheBudget) {
  Start({}, Unit::kRow, {.max_bytes = 4 << 20});
  const std::vector<RowId> rows = PutFloats({{"a", std::vector<float>(20, 0)}});
  for (int round = 0; round < 30; ++round) {
    const Taken taken = Take("rollout", 20);
    ASSERT_EQ(Respond(taken, std::vector<int64_t>(20, 1000), 1, /*partial=*/true), absl::OkStatus());
  }
  ASSERT_EQ(*Clear({rows[0]}), 1);
  EXPECT_EQ(Put(Floats({{"a", {1}}})), absl::OkStatus());
}

TEST_P(DockVersions, AWaitingWriterWakesWhenRowsAreSentBackToIt) {
  Start({.max_version_lag = 0});
  Roll(1, 1);
  ASSERT_EQ(Publish(2), absl::OkStatus());
  absl::StatusOr<Taken> taken;
  std::thread writer([&] {
    taken = dock_->Take({.partition = kPartition, .consumer = "rollout", .deadline = absl::InfiniteFuture()});
  });
  EXPECT_EQ(TryTake("trainer", 1, 1).status().code(), Code::kDeadlineExceeded);
  writer.join();
  EXPECT_EQ(taken.status(), absl::OkStatus());
}

}  // namespace tdock::dock
