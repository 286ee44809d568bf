// Takes, groups, waiting.
#include <algorithm>
#include <map>
#include <set>

#include "dock/testing/conformance.h"

namespace tdock::dock {

using testing::Each;
using testing::ElementsAre;
using testing::UnorderedElementsAre;

// ---- Rows.

TEST_P(DockConformance, ARowIsReadyWhenAllThatItsConsumerReadsIsThere) {
  Create();
  Register({.name = "x", .reads = {"a", "b"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2, 3}}});
  EXPECT_EQ(StatusOf("x").waiting, 3);
  ASSERT_EQ(Fill({rows[2], rows[0]}, {{"b", {30, 10}}}), absl::OkStatus());
  EXPECT_EQ(StatusOf("x").ready, 2);
  const Taken taken = Take("x", 2);
  EXPECT_EQ(Ids(taken), (std::vector<RowId>{rows[0], rows[2]}));
  EXPECT_THAT(*taken.rows.ToColumn("b")->Values<float>(), ElementsAre(10, 30));
  EXPECT_THAT(taken.rows.groups(), Each(kNoGroup));
}

TEST_P(DockConformance, TakesUpToMaxAndNothingBelowMin) {
  Create();
  Register({.name = "x", .reads = {"a"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2, 3}}});
  EXPECT_EQ(TryTake("x", 4, 9).status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(StatusOf("x").ready, 3);
  EXPECT_EQ(TryTake("x", 1, 2)->rows.size(), 2u);
  EXPECT_EQ(TryTake("x", 1, 2)->rows.size(), 1u);
  EXPECT_EQ(TryTake("x", 0, 2).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(TryTake("x", 3, 2).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(TryTake("x", 1, -1).status().code(), Code::kInvalidArgument);
}

TEST_P(DockConformance, EachConsumerGetsEachRowOnce) {
  Create();
  Register({.name = "x", .reads = {"a"}});
  Register({.name = "y", .reads = {"a"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2}}});
  EXPECT_EQ(Ids(Take("x", 1)), (std::vector<RowId>{rows[0]}));
  EXPECT_EQ(Ids(Take("x", 1)), (std::vector<RowId>{rows[1]}));
  EXPECT_EQ(Ids(Take("y", 2)), rows);
  EXPECT_EQ(TryTake("x", 1, 1).status().code(), Code::kDeadlineExceeded);
}

TEST_P(DockConformance, AConsumerThatReadsNothingGetsRowsAsTheyCome) {
  Create();
  Register({.name = "x"});
  const std::vector<RowId> rows = PutFloats({{"c", {1, 2}}});
  const Taken taken = Take("x", 2);
  EXPECT_EQ(Ids(taken), rows);
  EXPECT_TRUE(taken.rows.columns().empty());
}

TEST_P(DockConformance, AConsumerRegisteredLateSeesTheRowsThatAreThere) {
  Create();
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2, 3}}});
  ASSERT_EQ(Fill({rows[1]}, {{"b", {5}}}), absl::OkStatus());
  Register({.name = "x", .reads = {"a", "b"}});
  Register({.name = "all"});
  EXPECT_EQ(StatusOf("x").waiting, 2);
  EXPECT_EQ(Ids(Take("x", 1)), (std::vector<RowId>{rows[1]}));
  EXPECT_EQ(Ids(Take("all", 3)), rows);
}

TEST_P(DockConformance, UniformTakesReplayFromTheSeedWhateverTheOrderOfArrival) {
  std::vector<std::vector<RowId>> orders;
  for (const bool backwards : {false, true}) {
    dock_ = GetParam()(clock_);
    Create();
    Register({.name = "x", .reads = {"b"}, .sampler = Sampler::kUniform, .seed = 5});
    const std::vector<RowId> rows = PutFloats({{"a", std::vector<float>(100)}});
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_EQ(Fill({backwards ? rows[rows.size() - 1 - i] : rows[i]}, {{"b", {1}}}), absl::OkStatus());
    }
    std::vector<RowId> order;
    for (int take = 0; take < 10; ++take) {
      for (RowId row : Ids(Take("x", 10))) order.push_back(row);
    }
    std::vector<RowId> sorted = order;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, rows);
    EXPECT_NE(order, rows);
    orders.push_back(order);
  }
  EXPECT_EQ(orders[0], orders[1]);
}

TEST_P(DockConformance, UniformTakesAreUniform) {
  Create();
  std::map<RowId, int> first;
  const std::vector<RowId> rows = PutFloats({{"a", std::vector<float>(20)}});
  for (uint64_t seed = 0; seed < 2'000; ++seed) {
    const std::string name = "x" + std::to_string(seed);
    Register({.name = name, .reads = {"a"}, .sampler = Sampler::kUniform, .seed = seed});
    for (RowId row : Ids(Take(name, 2))) ++first[row];
  }
  for (RowId row : rows) EXPECT_NEAR(first[row], 200, 60) << row;
}

TEST_P(DockConformance, LoadersOfOneRankShareItsRowsAndNeverRepeat) {
  Create();
  Register({.name = "x", .reads = {"a"}, .ranks = 2});
  const std::vector<RowId> rows = PutFloats({{"a", {0, 1, 2, 3, 4, 5, 6, 7}}});
  const auto take = [&](int32_t rank, int64_t count) {
    return dock_->Take({.partition = kPartition, .consumer = "x", .min = count, .max = count, .rank = rank});
  };
  EXPECT_EQ(Ids(*take(1, 1)), std::vector<RowId>{rows[1]});
  EXPECT_EQ(Ids(*take(0, 3)), (std::vector<RowId>{rows[0], rows[2], rows[4]}));
  // Another loader of rank 1.
  EXPECT_EQ(Ids(*take(1, 2)), (std::vector<RowId>{rows[3], rows[5]}));
  EXPECT_EQ(StatusOf("x").takeable, 2);
  EXPECT_EQ(take(0, 2).status().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(take(2, 1).status(), Fails(Code::kInvalidArgument, {"'x' has 2 ranks", "rank 2"}));
  EXPECT_EQ(take(-1, 1).status().code(), Code::kInvalidArgument);
  // Sealed, each rank ends by itself.
  ASSERT_EQ(dock_->Seal(kPartition), absl::OkStatus());
  for (LeaseId lease = 1; lease <= 3; ++lease) ASSERT_EQ(Complete(lease), absl::OkStatus());
  const absl::StatusOr<Taken> last = take(0, 5);
  ASSERT_EQ(last.status(), absl::OkStatus());
  EXPECT_EQ(Ids(*last), std::vector<RowId>{rows[6]});
  ASSERT_EQ(Complete(last->lease), absl::OkStatus());
  EXPECT_THAT(take(0, 1).status(), Fails(Code::kOutOfRange, {"rank 0"}));
  EXPECT_EQ(Ids(*take(1, 1)), std::vector<RowId>{rows[7]});
}

TEST_P(DockConformance, RanksShareGroupsOutInTheOrderInWhichTheyBegan) {
  Create({.group_size = 2});
  Register({.name = "x", .reads = {"a"}, .unit = Unit::kGroup, .ranks = 2});
  PutRequest put = Floats({{"a", {0, 1, 2, 3, 4, 5}}});
  put.groups = {70, 50, 70, 50, 60, 60};
  const std::vector<RowId> rows = PutNew(put);
  const auto take = [&](int32_t rank) {
    return Ids(*dock_->Take({.partition = kPartition, .consumer = "x", .max = 9, .rank = rank}));
  };
  EXPECT_EQ(take(1), (std::vector<RowId>{rows[1], rows[3]}));
  EXPECT_EQ(take(0), (std::vector<RowId>{rows[0], rows[2], rows[4], rows[5]}));
}

TEST_P(DockConformance, BalancedTakesHaveNearlyEqualLengths) {
  Create({.columns = {{"text", ColumnType::Bytes()}}});
  Register({.name = "x", .reads = {"text"}, .sampler = Sampler::kLengthBalanced, .length_column = "text"});
  std::vector<std::string> texts;
  for (size_t i = 0; i < 32; ++i) texts.emplace_back(100 * (i % 2 == 0 ? 1 + i : 64 - i), 'x');
  PutRequest put{.partition = kPartition};
  ASSERT_EQ(put.batch.Add("text", Column::FromStrings(texts)), absl::OkStatus());
  PutNew(put);
  std::set<RowId> seen;
  for (int take = 0; take < 8; ++take) {
    const Taken taken = Take("x", 4);
    // The oldest comes first: no row waits for ever.
    if (take == 0) {
      EXPECT_EQ(taken.rows.ids()[0], 0u);
    }
    size_t length = 0;
    for (size_t i = 0; i < taken.rows.size(); ++i) length += taken.rows.Text(i, "text")->size();
    EXPECT_NEAR(static_cast<double>(length), 4 * 3200, 450) << take;
    seen.insert(taken.rows.ids().begin(), taken.rows.ids().end());
  }
  EXPECT_EQ(seen.size(), 32u);
}

// ---- Groups.

TEST_P(DockConformance, GroupsAreHandedOutWholeAndNeverMixed) {
  // Groups (0,1) and (2,3) with rows 1 and 2 ready: a sampler that pairs neighbours mixes two prompts.
  Create();
  Register({.name = "x", .reads = {"b"}, .unit = Unit::kGroup});
  PutRequest put = Floats({{"a", {0, 1, 2, 3}}});
  put.groups = {70, 70, 80, 80};
  put.group_size = 2;
  const std::vector<RowId> rows = PutNew(put);
  ASSERT_EQ(Fill({rows[1], rows[2]}, {{"b", {1, 2}}}), absl::OkStatus());
  EXPECT_EQ(TryTake("x", 1, 2).status().code(), Code::kDeadlineExceeded);
  ASSERT_EQ(Fill({rows[3]}, {{"b", {3}}}), absl::OkStatus());
  const Taken taken = Take("x", 1);
  EXPECT_EQ(Ids(taken), (std::vector<RowId>{rows[2], rows[3]}));
  EXPECT_THAT(taken.rows.groups(), ElementsAre(80, 80));
}

TEST_P(DockConformance, AGroupMayArriveInPiecesAndStandsWhereItsFirstRowDoes) {
  Create({.group_size = 3});
  Register({.name = "x", .reads = {"a"}, .unit = Unit::kGroup});
  PutRequest put = Floats({{"a", {1, 2, 3}}});
  put.groups = {9, 8, 9};
  const std::vector<RowId> first = PutNew(put);
  put.groups = {8, 9, 8};
  const std::vector<RowId> second = PutNew(put);
  EXPECT_EQ(Status().groups, 2);
  EXPECT_EQ(Status().incomplete_groups, 0);
  const Taken taken = Take("x", 2);
  EXPECT_EQ(Ids(taken), (std::vector<RowId>{first[0], first[2], second[1], first[1], second[0], second[2]}));
  EXPECT_THAT(taken.rows.groups(), ElementsAre(9, 9, 9, 8, 8, 8));
}

TEST_P(DockConformance, RefusesRowsBeyondTheSizeOfTheirGroup) {
  Create({.group_size = 2});
  PutRequest put = Floats({{"a", {1, 2, 3}}});
  put.groups = {5, 6, 5};
  PutNew(put);
  PutRequest more = Floats({{"a", {1}}});
  more.groups = {5};
  EXPECT_THAT(Put(more), Fails(Code::kInvalidArgument, {"group 5", "takes 2", "has 2", "given 1"}));
  put.groups = {6, 7, 6};
  EXPECT_THAT(Put(put), Fails(Code::kInvalidArgument, {"group 6", "takes 2", "has 1", "given 2"}));
  more.groups = {6};
  more.group_size = 3;
  EXPECT_THAT(Put(more), Fails(Code::kInvalidArgument, {"group 6", "with 2 rows", "group_size 3"}));
  more.group_size = -1;
  EXPECT_EQ(Put(more).code(), Code::kInvalidArgument);
  EXPECT_THAT(Put(Floats({{"a", {1}}})), Fails(Code::kInvalidArgument, {"groups", "2 rows", "each row"}));
  more = Floats({{"a", {1, 2}}});
  more.groups = {6};
  EXPECT_THAT(Put(more), Fails(Code::kInvalidArgument, {"1 groups for 2 rows"}));
  more.groups = {6, kNoGroup};
  EXPECT_EQ(Put(more).code(), Code::kInvalidArgument);
  EXPECT_EQ(Status().rows, 3);
  EXPECT_EQ(Status().groups, 2);
}

TEST_P(DockConformance, RowsWithoutAGroupAreGroupsOfOne) {
  Create();
  Register({.name = "x", .reads = {"a"}, .unit = Unit::kGroup});
  PutRequest put = Floats({{"a", {1, 2}}});
  put.groups = {5, 5};
  put.group_size = 2;
  PutFloats({{"a", {0}}});
  PutNew(put);
  PutFloats({{"a", {3}}});
  EXPECT_EQ(StatusOf("x").takeable, 3);
  const Taken taken = Take("x", 3);
  EXPECT_THAT(taken.rows.groups(), ElementsAre(kNoGroup, 5, 5, kNoGroup));
}

TEST_P(DockConformance, AGroupDoneInPartIsNotHandedOutAgain) {
  Create({.group_size = 2});
  Register({.name = "x", .reads = {"a"}, .unit = Unit::kGroup, .lease_duration = absl::Seconds(30)});
  PutRequest put = Floats({{"a", {1, 2, 3, 4}}});
  put.groups = {5, 5, 6, 6};
  const std::vector<RowId> rows = PutNew(put);
  ASSERT_EQ(dock_->Seal(kPartition), absl::OkStatus());
  const Taken taken = Take("x", 1);
  ASSERT_EQ(Complete(taken.lease, {rows[0]}), absl::OkStatus());
  const Taken other = *TryTake("x", 2, 2);
  EXPECT_THAT(other.rows.groups(), ElementsAre(6, 6));
  ASSERT_EQ(Complete(other.lease), absl::OkStatus());
  // The holder may still finish it.
  EXPECT_EQ(TryTake("x", 1, 1).status().code(), Code::kDeadlineExceeded);
  clock_.Advance(absl::Minutes(1));
  EXPECT_EQ(StatusOf("x").takeable, 0);
  EXPECT_THAT(TryTake("x", 1, 1).status(), Fails(Code::kFailedPrecondition, {"group 5: of its 2 rows 1 are done"}));
}

TEST_P(DockConformance, AGroupReleasedInPartIsNotHandedOutToAConsumerThatComesLate) {
  Create({.group_size = 2, .retain_for = {"x"}});
  Register({.name = "x", .reads = {"a"}});
  PutRequest put = Floats({{"a", {1, 2}}});
  put.groups = {5, 5};
  PutNew(put);
  ASSERT_EQ(Complete(Take("x", 1).lease), absl::OkStatus());
  Register({.name = "late", .reads = {"a"}, .unit = Unit::kGroup});
  EXPECT_EQ(StatusOf("late").ready, 1);
  EXPECT_EQ(StatusOf("late").takeable, 0);
  ASSERT_EQ(dock_->Seal(kPartition), absl::OkStatus());
  EXPECT_THAT(TryTake("late", 1, 1).status(), Fails(Code::kFailedPrecondition, {"group 5", "1 are gone"}));
}

TEST_P(DockConformance, AGroupConsumerRegisteredLateSeesTheGroups) {
  Create({.group_size = 2});
  PutRequest put = Floats({{"a", {1, 2, 3}}});
  put.groups = {5, 5, 6};
  PutNew(put);
  Register({.name = "x", .reads = {"a"}, .unit = Unit::kGroup, .sampler = Sampler::kUniform});
  EXPECT_EQ(StatusOf("x").ready, 3);
  EXPECT_EQ(StatusOf("x").takeable, 1);
  EXPECT_THAT(Take("x", 1).rows.groups(), ElementsAre(5, 5));
}

// ---- Waiting.

TEST_P(DockConformance, ATakeWakesWhenEnoughIsThere) {
  Create();
  Register({.name = "x", .reads = {"a"}});
  absl::StatusOr<Taken> taken;
  std::thread waiter([&] {
    taken =
        dock_->Take({.partition = kPartition, .consumer = "x", .min = 2, .max = 5, .deadline = In(absl::Seconds(60))});
  });
  clock_.AwaitWaiters(1);
  PutFloats({{"a", {1}}});
  PutFloats({{"a", {2, 3}}});
  waiter.join();
  ASSERT_EQ(taken.status(), absl::OkStatus());
  EXPECT_EQ(taken->rows.size(), 3u);
}

TEST_P(DockConformance, AnExpiredTakeSaysWhatIsMissingAndWhoHoldsIt) {
  Create();
  Register({.name = "judge", .reads = {"a"}, .writes = {"b"}, .lease_duration = absl::Minutes(10)});
  Register({.name = "x", .reads = {"a", "b", "c"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2, 3}}});
  const Taken held = Take("judge", 1);
  const Taken done = Take("judge", 1);
  ASSERT_EQ(Complete(done.lease), absl::OkStatus());
  absl::Status status;
  std::thread waiter([&] {
    status = dock_->Take({.partition = kPartition, .consumer = "x", .deadline = In(absl::Seconds(60))}).status();
  });
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Seconds(61));
  waiter.join();
  EXPECT_THAT(status, Fails(Code::kDeadlineExceeded, {"'x' of partition 'train'", "3 waiting", "'b', 'c' of 3 rows",
                                                      "Writer 'judge' has held", "lease 1 for 1m1s", "row 0 lacks 'b'",
                                                      "No registered", "rows 0 to 2 lack 'c'", "Writer 'judge' is done",
                                                      "row 1 lacks 'b'", "Writer 'judge' has not", "row 2 lacks 'b'"}));
  EXPECT_EQ(StatusOf("x").leased, 0);
}

TEST_P(DockConformance, AMessageGathersRowsThatLackTheSame) {
  Create();
  Register({.name = "x", .reads = {"b"}});
  PutFloats({{"a", std::vector<float>(3'000)}});
  const std::string text = *dock_->Explain(kPartition, "x");
  EXPECT_THAT(text, Mentions({"'b' of 3000 rows", "No registered", "rows 0 to 99 lack 'b'", "2900 more"}));
  EXPECT_EQ(text.find("lack"), text.rfind("lack"));
}

TEST_P(DockConformance, AnExplanationSaysOnceWhatHoldsUpSeveralColumns) {
  Create();
  Register({.name = "w", .reads = {"a"}, .writes = {"b", "c"}});
  Register({.name = "x", .reads = {"b", "c"}});
  PutFloats({{"a", {1, 2}}});
  const std::string text = *dock_->Explain(kPartition, "x");
  EXPECT_THAT(text, Mentions({"'b', 'c' of 2 rows", "rows 0, 1 lack 'b', 'c'"}));
  EXPECT_EQ(text.find("'w'"), text.rfind("'w'"));
  EXPECT_LT(text.find("'w'"), text.find("2 waiting")) << "the cause comes before the counts";
}

TEST_P(DockConformance, ExplainFindsTheRowsThatWaitBehindManyThatDoNot) {
  Create();
  Register({.name = "w", .reads = {"c"}, .writes = {"b"}});
  Register({.name = "x", .reads = {"b"}});
  PutFloats({{"a", std::vector<float>(3'000)}, {"b", std::vector<float>(3'000)}});
  PutFloats({{"a", {1}}});
  for (int again = 0; again < 2; ++again) {
    EXPECT_THAT(*dock_->Explain(kPartition, "x"), Mentions({"Writer 'w' waits for 'c'", "row 3000 lacks 'b'"}));
  }
}

TEST_P(DockConformance, AWaiterGetsTheRowsOfALeaseThatExpires) {
  Create();
  Register({.name = "x", .reads = {"a"}, .lease_duration = absl::Seconds(30)});
  const std::vector<RowId> rows = PutFloats({{"a", {1}}});
  const Taken crashed = Take("x", 1);
  absl::StatusOr<Taken> taken;
  std::thread waiter(
      [&] { taken = dock_->Take({.partition = kPartition, .consumer = "x", .deadline = In(absl::Seconds(60))}); });
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Seconds(31));
  waiter.join();
  ASSERT_EQ(taken.status(), absl::OkStatus());
  EXPECT_EQ(Ids(*taken), rows);
}

TEST_P(DockConformance, AFetchWaitsForItsCells) {
  Create();
  Register({.name = "w", .reads = {"a"}, .writes = {"b"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2}}});
  EXPECT_THAT(dock_->Fetch({.partition = kPartition, .rows = rows, .columns = {"a", "b"}}).status(),
              Fails(Code::kDeadlineExceeded, {"2 cells", "Writer 'w' has not", "rows 0, 1 lack 'b'"}));
  absl::StatusOr<Rows> read;
  std::thread waiter([&] {
    read = dock_->Fetch({.partition = kPartition, .rows = rows, .columns = {"b"}, .deadline = In(absl::Seconds(60))});
  });
  clock_.AwaitWaiters(1);
  ASSERT_EQ(Fill({rows[1]}, {{"b", {5}}}), absl::OkStatus());
  ASSERT_EQ(Fill({rows[0]}, {{"b", {4}}}), absl::OkStatus());
  waiter.join();
  ASSERT_EQ(read.status(), absl::OkStatus());
  EXPECT_THAT(*read->ToColumn("b")->Values<float>(), ElementsAre(4, 5));
}

TEST_P(DockConformance, AFetchOfARowThatIsClearedMeanwhileFails) {
  Create();
  const std::vector<RowId> rows = PutFloats({{"a", {1}}});
  absl::Status status;
  std::thread waiter([&] {
    status = dock_->Fetch({.partition = kPartition, .rows = rows, .columns = {"b"}, .deadline = absl::InfiniteFuture()})
                 .status();
  });
  clock_.AwaitWaiters(1);
  ASSERT_EQ(Clear(rows).status(), absl::OkStatus());
  waiter.join();
  EXPECT_THAT(status, Fails(Code::kNotFound, {"row 0 is gone"}));
}

TEST_P(DockConformance, DroppingAPartitionEndsTheWaits) {
  Create();
  Register({.name = "x", .reads = {"a"}});
  const std::vector<RowId> rows = PutFloats({{"b", {1}}});
  absl::Status take, fetch;
  std::thread taker([&] {
    take = dock_->Take({.partition = kPartition, .consumer = "x", .deadline = absl::InfiniteFuture()}).status();
  });
  std::thread fetcher([&] {
    fetch = dock_->Fetch({.partition = kPartition, .rows = rows, .columns = {"a"}, .deadline = absl::InfiniteFuture()})
                .status();
  });
  clock_.AwaitWaiters(2);
  ASSERT_EQ(dock_->DropPartition(kPartition), absl::OkStatus());
  taker.join();
  fetcher.join();
  EXPECT_EQ(take.code(), Code::kNotFound);
  EXPECT_EQ(fetch.code(), Code::kNotFound);
}

TEST_P(DockConformance, LeasesOfADroppedPartitionAreNotThoseOfTheNextOfItsName) {
  LeaseId before = kNoLease;
  for (int i = 0; i < 3; ++i) {
    Create();
    Register({.name = "x", .reads = {"b"}});
    PutFloats({{"b", {1, 2}}});
    const Taken taken = *dock_->Take({.partition = kPartition, .consumer = "x"});
    EXPECT_GT(taken.lease, before);
    if (before != kNoLease) {
      EXPECT_NE(dock_->Release({.partition = kPartition, .lease = before}), absl::OkStatus());
      EXPECT_EQ(dock_->GetConsumerStatus(kPartition, "x")->leased, 1);
    }
    before = taken.lease;
    ASSERT_EQ(dock_->DropPartition(kPartition), absl::OkStatus());
  }
}

}  // namespace tdock::dock
