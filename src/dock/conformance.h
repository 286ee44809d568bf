// What every Dock must do, whatever it is made of: a suite over the abstract interface. A test file instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(Local, DockConformance, testing::Values(DockFactory(…)));
//   INSTANTIATE_TEST_SUITE_P(Local, DockRows, testing::Values(DockFactory(…)));
//   INSTANTIATE_TEST_SUITE_P(Local, DockVersions, testing::Values(DockFactory(…)));
//
// This header holds the fixture; the tests are in conformance_budget.h, conformance_data.h, conformance_labels.h,
// conformance_flow.h, conformance_leases.h, conformance_life.h, conformance_row.h and conformance_versions.h.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "tdock/dock.h"

namespace tdock {

using DockFactory = std::function<std::unique_ptr<Dock>(Clock&)>;

// `status` has this code, and its message all of these words.
MATCHER_P2(FailsWith, code, words, "") {
  const absl::Status& status = arg;
  *result_listener << status.ToString();
  if (status.code() != code) return false;
  for (const std::string& word : words) {
    if (status.message().find(word) == absl::string_view::npos) {
      *result_listener << ", without '" << word << "'";
      return false;
    }
  }
  return true;
}

inline auto Fails(absl::StatusCode code, std::vector<std::string> words = {}) { return FailsWith(code, words); }

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

  absl::Status Put(const PutRequest& request) { return dock_->Put(request).status(); }

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
    PutRequest request = Floats(std::move(columns));
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

}  // namespace tdock
