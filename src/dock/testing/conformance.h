// What every Dock must do, whatever it is made of: a suite over the abstract interface. A test file instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(Local, DockConformance, testing::Values(DockFactory(…)));
//   INSTANTIATE_TEST_SUITE_P(Local, DockRows, testing::Values(DockFactory(…)));
//   INSTANTIATE_TEST_SUITE_P(Local, DockVersions, testing::Values(DockFactory(…)));
//
// This header holds the fixtures. The tests are in the *_conformance.cc beside it, compiled once, into objects that the
// test executable of a module has where its declaration names `dock/testing` among its TEST_USES.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "tdock/dock.h"

namespace tdock::dock {

using DockFactory = std::function<std::unique_ptr<Dock>(Clock&)>;

class DockConformance : public testing::TestWithParam<DockFactory> {
 protected:
  using Code = absl::StatusCode;

  static constexpr const char* kPartition = "train";

  FakeClock clock_;
  std::unique_ptr<Dock> dock_ = GetParam()(clock_);

  absl::Time In(absl::Duration duration) { return clock_.Now() + duration; }

  // A partition with the float32 columns a, b and c.
  void Create(PartitionOptions options = {}) {
    options.name = kPartition;
    if (options.columns.empty() && !options.growing) {
      for (const char* name : {"a", "b", "c"}) options.columns.push_back({name, ColumnType::Dense(DType::kF32)});
    }
    ASSERT_EQ(dock_->CreatePartition(options), absl::OkStatus());
  }

  void Register(const ConsumerOptions& options) {
    ASSERT_EQ(dock_->RegisterConsumer(kPartition, options), absl::OkStatus());
  }

  // A put of float columns.
  static PutRequest Floats(std::vector<std::pair<std::string, std::vector<float>>> columns) {
    PutRequest request{.partition = kPartition};
    for (const auto& [name, values] : columns) {
      EXPECT_EQ(request.batch.Add(name, Column::FromValues<float>(values)), absl::OkStatus());
    }
    return request;
  }

  static FillRequest Cells(std::vector<std::pair<std::string, std::vector<float>>> columns) {
    return {.partition = kPartition, .batch = Floats(std::move(columns)).batch};
  }

  absl::Status Put(const PutRequest& request) { return dock_->Put(request).status(); }
  absl::Status Put(const FillRequest& request) { return dock_->Fill(request); }

  std::vector<RowId> PutNew(const PutRequest& request) {
    absl::StatusOr<PutResult> result = dock_->Put(request);
    EXPECT_EQ(result.status(), absl::OkStatus());
    return result.ok() ? result->rows : std::vector<RowId>();
  }
  std::vector<RowId> PutFloats(std::vector<std::pair<std::string, std::vector<float>>> columns) {
    return PutNew(Floats(std::move(columns)));
  }
  // Fills cells of rows that are there.
  absl::Status Fill(std::vector<RowId> rows, std::vector<std::pair<std::string, std::vector<float>>> columns,
                    LeaseId lease = kNoLease) {
    FillRequest request = Cells(std::move(columns));
    request.rows = std::move(rows);
    request.lease = lease;
    return Put(request);
  }

  absl::StatusOr<Taken> TryTake(const std::string& consumer, int64_t min, int64_t max) {
    return dock_->Take({.partition = kPartition, .consumer = consumer, .min = min, .max = max});
  }
  Taken Take(const std::string& consumer, int64_t count) {
    absl::StatusOr<Taken> taken = TryTake(consumer, count, count);
    EXPECT_EQ(taken.status(), absl::OkStatus());
    return taken.ok() ? *std::move(taken) : Taken();
  }

  static std::vector<RowId> Ids(const Taken& taken) { return {taken.rows.ids().begin(), taken.rows.ids().end()}; }
  static std::vector<RowId> Ids(const Rows& rows) { return {rows.ids().begin(), rows.ids().end()}; }

  absl::Status Complete(LeaseId lease, std::vector<RowId> rows = {}) {
    return dock_->Complete({.partition = kPartition, .lease = lease, .rows = std::move(rows)});
  }
  absl::Status Release(LeaseId lease, std::vector<RowId> rows = {}) {
    return dock_->Release({.partition = kPartition, .lease = lease, .rows = std::move(rows)});
  }

  // The floats of one column of one row.
  float Read(RowId row, const std::string& column) {
    absl::StatusOr<Rows> rows = dock_->Fetch({.partition = kPartition, .rows = {row}, .columns = {column}});
    EXPECT_EQ(rows.status(), absl::OkStatus());
    return rows.ok() ? rows->Get<float>(0, column)->front() : -1;
  }

  ConsumerStatus StatusOf(const std::string& consumer) {
    absl::StatusOr<ConsumerStatus> status = dock_->GetConsumerStatus(kPartition, consumer);
    EXPECT_EQ(status.status(), absl::OkStatus());
    return status.ok() ? *status : ConsumerStatus();
  }
  PartitionStatus Status() {
    absl::StatusOr<PartitionStatus> status = dock_->GetStatus(kPartition);
    EXPECT_EQ(status.status(), absl::OkStatus());
    return status.ok() ? *status : PartitionStatus();
  }
  absl::StatusOr<int64_t> Clear(std::vector<RowId> rows) {
    return dock_->Clear({.partition = kPartition, .rows = std::move(rows)});
  }
  absl::StatusOr<int64_t> ClearEverything() { return dock_->Clear({.partition = kPartition, .everything = true}); }
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DockConformance);

class DockRows : public DockConformance {
 protected:
  RowStatus StatusOfRow(RowId row) {
    absl::StatusOr<RowStatus> status = dock_->GetRowStatus(kPartition, row);
    EXPECT_EQ(status.status(), absl::OkStatus());
    return status.ok() ? *status : RowStatus();
  }
  RowCellStatus StatusOfCell(RowId row, const std::string& column) {
    for (const RowCellStatus& cell : StatusOfRow(row).cells) {
      if (cell.column == column) return cell;
    }
    ADD_FAILURE() << "no column " << column;
    return {};
  }
  RowConsumerStatus StatusFor(const std::string& consumer, RowId row) {
    for (const RowConsumerStatus& status : StatusOfRow(row).consumers) {
      if (status.consumer == consumer) return status;
    }
    ADD_FAILURE() << "no consumer " << consumer;
    return {};
  }
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DockRows);

// rollout makes b (a response) from a (a prompt), reward makes c from b, trainer reads b and c.
class DockVersions : public DockConformance {
 protected:
  void Start(ConsumerOptions trainer, Unit unit = Unit::kRow, PartitionOptions options = {}) {
    options.columns = {{"a", ColumnType::Dense(DType::kF32)},
                       {"b", ColumnType::Ragged(DType::kI64)},
                       {"c", ColumnType::Dense(DType::kF32)}};
    Create(options);
    Register({.name = "rollout", .reads = {"a"}, .reads_optional = {"b"}, .writes = {"b"}, .unit = unit});
    Register({.name = "reward", .reads = {"b"}, .writes = {"c"}});
    trainer.name = "trainer";
    trainer.reads = {"b", "c"};
    Register(trainer);
  }
  absl::Status Publish(int64_t version) { return dock_->PublishWeights(kPartition, version); }

  // A response of so many tokens for each row.
  absl::Status Respond(const Taken& taken, std::vector<int64_t> lengths, int64_t version, bool partial = false,
                       std::vector<RowId> rows = {}) {
    std::vector<std::vector<int64_t>> tokens;
    for (int64_t length : lengths) tokens.emplace_back(static_cast<size_t>(length), 7);
    FillRequest put{.partition = kPartition, .rows = rows.empty() ? Ids(taken) : rows, .lease = taken.lease};
    EXPECT_EQ(put.batch.Add("b", Column::FromRows(tokens)), absl::OkStatus());
    put.partial = partial;
    put.weights_version = version;
    return Put(put);
  }
  void Score(int64_t count) {
    const Taken taken = Take("reward", count);
    ASSERT_EQ(Fill(Ids(taken), {{"c", std::vector<float>(static_cast<size_t>(count), 1)}}, taken.lease),
              absl::OkStatus());
  }
  // New prompts, with their responses and rewards by this version.
  std::vector<RowId> Roll(int64_t count, int64_t version) {
    const std::vector<RowId> rows = PutFloats({{"a", std::vector<float>(static_cast<size_t>(count), 0)}});
    EXPECT_EQ(Respond(Take("rollout", count), std::vector<int64_t>(static_cast<size_t>(count), 3), version),
              absl::OkStatus());
    Score(count);
    return rows;
  }
  std::vector<Piece> PiecesOf(RowId row) {
    const auto rows = dock_->Fetch({.partition = kPartition, .rows = {row}, .columns = {"b"}});
    EXPECT_EQ(rows.status(), absl::OkStatus());
    return *rows->Pieces(0, "b");
  }
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DockVersions);

}  // namespace tdock::dock
