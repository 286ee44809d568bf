// The status of one row.
#include "dock/testing/conformance.h"

namespace tdock::dock {

TEST_P(DockRows, ARowTellsWhatItIs) {
  Create({.group_size = 2});
  PutRequest put = Floats({{"a", {1, 2}}});
  put.groups = {7, 7};
  put.keys = {"", "k"};
  put.tags = {{{"split", "hard"}}};
  const std::vector<RowId> rows = PutNew(put);
  const RowStatus status = StatusOfRow(rows[1]);
  EXPECT_EQ(status.row, rows[1]);
  EXPECT_EQ(status.group, 7);
  EXPECT_EQ(status.key, "k");
  EXPECT_EQ(status.tags, (Tags{{"split", "hard"}}));
  EXPECT_EQ(status.age, 0);
  EXPECT_EQ(status.epoch, 0u);
  EXPECT_EQ(status.cells.size(), 3u);
  EXPECT_TRUE(status.consumers.empty());
  EXPECT_EQ(StatusOfRow(rows[0]).key, "");
}

TEST_P(DockRows, ARowThatIsNotThereIsNotFound) {
  Create();
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2}}});
  const auto status = [&](RowId row) { return dock_->GetRowStatus(kPartition, row).status(); };
  EXPECT_THAT(status(rows[1] + 1), Fails(Code::kNotFound, {absl::StrCat("row ", rows[1] + 1)}));
  ASSERT_EQ(Clear({rows[0]}).status(), absl::OkStatus());
  EXPECT_THAT(status(rows[0]), Fails(Code::kNotFound, {"is gone"}));
  EXPECT_EQ(status(rows[1]), absl::OkStatus());
  EXPECT_EQ(dock_->GetRowStatus("nowhere", rows[1]).status().code(), Code::kNotFound);
}

TEST_P(DockRows, ACellTellsItsSizeItsVersionAndWhoPutIt) {
  Create({.columns = {{"a", ColumnType::Dense(DType::kF32)},
                      {"text", ColumnType::Bytes()},
                      {"empty", ColumnType::Dense(DType::kF32, {0})}}});
  Register({.name = "writer", .reads = {"a"}, .writes = {"text", "empty"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1, 2}}});
  EXPECT_EQ(StatusOfCell(rows[0], "a").state, CellState::kReady);
  EXPECT_EQ(StatusOfCell(rows[0], "a").bytes, 4);
  EXPECT_EQ(StatusOfCell(rows[0], "a").weights_version, kNoWeightsVersion);
  EXPECT_EQ(StatusOfCell(rows[0], "a").writer, "");
  EXPECT_EQ(StatusOfCell(rows[0], "text").state, CellState::kEmpty);
  EXPECT_EQ(StatusOfCell(rows[0], "text").bytes, 0);

  FillRequest put{.partition = kPartition, .rows = rows, .lease = Take("writer", 2).lease, .weights_version = 3};
  const std::vector<std::string> texts = {"12345", ""};
  ASSERT_EQ(put.batch.Add("text", Column::FromStrings(texts)), absl::OkStatus());
  ASSERT_EQ(put.batch.Add("empty", *Column::MakeDense(DType::kF32, {0}, 2, Buffer())), absl::OkStatus());
  ASSERT_EQ(Put(put), absl::OkStatus());
  EXPECT_EQ(StatusOfCell(rows[0], "text").bytes, 5);
  EXPECT_EQ(StatusOfCell(rows[0], "text").weights_version, 3);
  EXPECT_EQ(StatusOfCell(rows[0], "text").writer, "writer");
  for (const char* column : {"text", "empty"}) {
    EXPECT_EQ(StatusOfCell(rows[1], column).state, CellState::kReady);
    EXPECT_EQ(StatusOfCell(rows[1], column).bytes, 0);
    EXPECT_EQ(StatusOfCell(rows[1], column).writer, "writer");
  }
  // What it wrote is its work also when it is gone.
  ASSERT_EQ(dock_->DropConsumer(kPartition, "writer"), absl::OkStatus());
  EXPECT_EQ(StatusOfCell(rows[0], "text").writer, "writer");
}

TEST_P(DockRows, WhoPutACellIsKnownWhoeverElsePutsItsColumn) {
  constexpr int kWriters = 6, kRows = 60;
  Create();
  for (int i = 0; i < kWriters; ++i) {
    Register({.name = absl::StrCat("w", i), .reads = {"a"}, .writes = {"b"}});
  }
  const std::vector<RowId> rows = PutFloats({{"a", std::vector<float>(kRows)}});
  // Small puts in turn, every seventh without a lease.
  std::vector<std::string> writers;
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t turn = i % (kWriters + 1);
    writers.push_back(turn == kWriters ? "" : absl::StrCat("w", turn));
    LeaseId lease = kNoLease;
    if (turn != kWriters) {
      const absl::StatusOr<Taken> taken =
          dock_->Take({.partition = kPartition, .consumer = writers.back(), .rows = {rows[i]}});
      ASSERT_EQ(taken.status(), absl::OkStatus());
      lease = taken->lease;
    }
    ASSERT_EQ(Fill({rows[i]}, {{"b", {static_cast<float>(i)}}}, lease), absl::OkStatus());
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(StatusOfCell(rows[i], "b").writer, writers[i]);
    EXPECT_EQ(Read(rows[i], "b"), static_cast<float>(i));
  }
  // Where most rows go, the others move together and keep what is known of them.
  std::vector<RowId> cleared;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i % 10 != 0) cleared.push_back(rows[i]);
  }
  ASSERT_EQ(*Clear(cleared), static_cast<int64_t>(cleared.size()));
  for (size_t i = 0; i < rows.size(); i += 10) EXPECT_EQ(StatusOfCell(rows[i], "b").writer, writers[i]);
}

TEST_P(DockRows, AnOverwrittenCellIsOfWhoOverwroteIt) {
  Create();
  Register({.name = "x", .reads = {"a"}, .writes = {"b"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1}}});
  ASSERT_EQ(Fill(rows, {{"b", {2}}}, Take("x", 1).lease), absl::OkStatus());
  FillRequest better = Cells({{"b", {3}}});
  better.rows = rows;
  better.overwrite = true;
  ASSERT_EQ(Put(better), absl::OkStatus());
  EXPECT_EQ(StatusOfCell(rows[0], "b").writer, "");
}

TEST_P(DockRows, ACellThatIsPartialIsNoSecret) {
  Create({.columns = {{"a", ColumnType::Dense(DType::kF32)}, {"r", ColumnType::Ragged(DType::kF32)}}});
  Register({.name = "rollout", .reads = {"a"}, .reads_optional = {"r"}, .writes = {"r"}});
  Register({.name = "reader", .reads = {"a", "r"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1}}});
  const auto put = [&](std::vector<float> values, int64_t version, bool partial) {
    FillRequest request{.partition = kPartition,
                        .rows = rows,
                        .lease = Take("rollout", 1).lease,
                        .partial = partial,
                        .weights_version = version};
    EXPECT_EQ(request.batch.Add("r", Column::FromRows<float>({values})), absl::OkStatus());
    EXPECT_EQ(Put(request), absl::OkStatus());
  };
  put({1, 2}, 7, /*partial=*/true);
  EXPECT_EQ(StatusOfCell(rows[0], "r").state, CellState::kPartial);
  EXPECT_EQ(StatusOfCell(rows[0], "r").bytes, 8);
  EXPECT_EQ(StatusOfCell(rows[0], "r").weights_version, 7);
  EXPECT_EQ(StatusOfCell(rows[0], "r").writer, "rollout");
  EXPECT_EQ(StatusOfRow(rows[0]).age, 1);
  EXPECT_EQ(StatusFor("rollout", rows[0]).state, DeliveryState::kReady);
  EXPECT_THAT(StatusFor("reader", rows[0]).missing, testing::ElementsAre("r"));
  // Complete, it keeps the version of its first part.
  put({1, 2, 3}, 9, /*partial=*/false);
  EXPECT_EQ(StatusOfCell(rows[0], "r").state, CellState::kReady);
  EXPECT_EQ(StatusOfCell(rows[0], "r").bytes, 12);
  EXPECT_EQ(StatusOfCell(rows[0], "r").weights_version, 7);
}

TEST_P(DockRows, ARowPassesThroughTheStatesOfAConsumer) {
  Create();
  Register({.name = "x",
            .reads = {"a", "b", "c"},
            .lease_duration = absl::Seconds(30),
            .max_deliveries = 2,
            .checkpointed = true});
  const std::vector<RowId> rows = PutFloats({{"b", {1, 2}}});
  const RowConsumerStatus waiting = StatusFor("x", rows[0]);
  EXPECT_EQ(waiting.state, DeliveryState::kWaiting);
  EXPECT_THAT(waiting.missing, testing::ElementsAre("a", "c"));
  EXPECT_EQ(waiting.lease, kNoLease);

  ASSERT_EQ(Fill(rows, {{"a", {1, 2}}, {"c", {1, 2}}}), absl::OkStatus());
  EXPECT_EQ(StatusFor("x", rows[0]).state, DeliveryState::kReady);
  EXPECT_TRUE(StatusFor("x", rows[0]).missing.empty());

  const absl::Time taken_at = clock_.Now();
  const Taken taken = Take("x", 2);
  clock_.Advance(absl::Seconds(10));
  const RowConsumerStatus leased = StatusFor("x", rows[0]);
  EXPECT_EQ(leased.state, DeliveryState::kLeased);
  EXPECT_EQ(leased.lease, taken.lease);
  EXPECT_EQ(leased.taken, taken_at);
  EXPECT_EQ(leased.expires, taken_at + absl::Seconds(30));
  EXPECT_EQ(leased.redeliveries, 0);

  ASSERT_EQ(dock_->Complete({.partition = kPartition, .lease = taken.lease, .rows = {rows[1]}, .step = 5}),
            absl::OkStatus());
  EXPECT_EQ(StatusFor("x", rows[1]).state, DeliveryState::kDone);
  EXPECT_EQ(StatusFor("x", rows[1]).lease, kNoLease);
  EXPECT_EQ(StatusFor("x", rows[1]).uncommitted_step, 5);
  ASSERT_EQ(dock_->Commit({.partition = kPartition, .consumer = "x", .step = 5}), absl::OkStatus());
  EXPECT_EQ(StatusFor("x", rows[1]).state, DeliveryState::kDone);
  EXPECT_EQ(StatusFor("x", rows[1]).uncommitted_step, kNoStep);

  // That its lease is over is seen without another call.
  clock_.Advance(absl::Seconds(21));
  EXPECT_EQ(StatusFor("x", rows[0]).state, DeliveryState::kReady);
  EXPECT_EQ(StatusFor("x", rows[0]).redeliveries, 1);
  Take("x", 1);
  clock_.Advance(absl::Seconds(31));
  EXPECT_EQ(StatusFor("x", rows[0]).state, DeliveryState::kQuarantined);
  EXPECT_EQ(StatusFor("x", rows[0]).redeliveries, 2);
}

TEST_P(DockRows, ALeaseWithoutAnEndIsHeldForEver) {
  Create();
  Register({.name = "x", .reads = {"a"}, .lease_duration = absl::InfiniteDuration()});
  const std::vector<RowId> rows = PutFloats({{"a", {1}}});
  Take("x", 1);
  EXPECT_EQ(StatusFor("x", rows[0]).expires, absl::InfiniteFuture());
}

TEST_P(DockRows, ARowThatWasSentBackIsOfALaterEpochAndWithoutTheCells) {
  Create();
  Register({.name = "writer", .reads = {"a"}, .writes = {"b"}});
  Register({.name = "trainer", .reads = {"b"}, .max_version_lag = 0, .stale = Stale::kSendBack});
  const std::vector<RowId> rows = PutFloats({{"a", {1}}});
  FillRequest put = Cells({{"b", {2}}});
  put.rows = rows;
  put.lease = Take("writer", 1).lease;
  put.weights_version = 1;
  ASSERT_EQ(Put(put), absl::OkStatus());
  ASSERT_EQ(dock_->PublishWeights(kPartition, 2), absl::OkStatus());
  EXPECT_EQ(TryTake("trainer", 1, 1).status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(StatusOfRow(rows[0]).epoch, 1u);
  EXPECT_EQ(StatusOfCell(rows[0], "b").state, CellState::kEmpty);
  EXPECT_EQ(StatusOfCell(rows[0], "b").writer, "");
  EXPECT_EQ(StatusFor("writer", rows[0]).state, DeliveryState::kReady);
  EXPECT_EQ(StatusFor("trainer", rows[0]).state, DeliveryState::kWaiting);
}

TEST_P(DockRows, ADroppedRowIsDoneForAll) {
  Create();
  Register({.name = "x", .reads = {"a", "b"}});
  const std::vector<RowId> rows = PutFloats({{"a", {1}}});
  ASSERT_EQ(dock_->Drop({.partition = kPartition, .rows = rows}), absl::OkStatus());
  EXPECT_EQ(StatusFor("x", rows[0]).state, DeliveryState::kDone);
  EXPECT_TRUE(StatusFor("x", rows[0]).missing.empty());
}

}  // namespace tdock::dock
