// Fixtures for the tests of this module: a dock with a fake clock, and shorthands for token columns.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "dock/compat/mindspeed/profile.h"
#include "tdock/compat/mindspeed.h"
#include "tdock/local_dock.h"

namespace tdock::mindspeed {

using Code = absl::StatusCode;
using Tokens = std::vector<std::vector<int64_t>>;
using Ints = std::vector<int64_t>;
using Names = std::vector<std::string>;

// Ragged int64 columns.
inline Batch TokenBatch(const std::vector<std::pair<std::string, Tokens>>& columns) {
  Batch batch;
  for (const auto& [name, rows] : columns) {
    EXPECT_EQ(batch.Add(name, Column::FromRows<int64_t>(rows)), absl::OkStatus());
  }
  return batch;
}

inline Tokens TokensOf(const Batch& batch, const std::string& name) {
  Tokens rows;
  for (int64_t i = 0; i < batch.rows(); ++i) {
    const auto row = batch.Row<int64_t>(name, i);
    EXPECT_EQ(row.status(), absl::OkStatus());
    if (row.ok()) rows.emplace_back(row->begin(), row->end());
  }
  return rows;
}

inline std::vector<int32_t> AgesOf(const Batch& batch) {
  const auto ages = batch.Values<int32_t>("age");
  EXPECT_EQ(ages.status(), absl::OkStatus());
  return ages.ok() ? std::vector<int32_t>(ages->begin(), ages->end()) : std::vector<int32_t>();
}

// One token in each row.
inline Tokens Ones(const Ints& values) {
  Tokens rows;
  for (const int64_t value : values) rows.push_back({value});
  return rows;
}

class MindSpeedTest : public testing::Test {
 protected:
  FakeClock clock_;
  std::shared_ptr<Dock> core_ = MakeLocalDock({.clock = &clock_});
  std::unique_ptr<MindSpeedDock> dock_;

  // For docks that are made afterwards.
  Profile::SamplingHook on_sampling_;

  // Reads do not wait, unless a test asks for it.
  void Make(MindSpeedOptions options, absl::Duration timeout = absl::ZeroDuration()) {
    options.partition = "train";
    options.clock = &clock_;
    options.timeout = timeout;
    absl::StatusOr<std::unique_ptr<MindSpeedDock>> made = Profile::Make(core_, options, on_sampling_);
    ASSERT_EQ(made.status(), absl::OkStatus());
    dock_ = *std::move(made);
  }
  void MakePartial(int64_t prompts, int64_t n, int64_t gbs) {
    MindSpeedOptions options = GrpoDock(prompts, n);
    options.max_age = 3;
    options.gbs_train = gbs;
    Make(options);
  }

  absl::Status Put(const ExperienceIndexes& indexes, const std::vector<std::pair<std::string, Tokens>>& columns) {
    return dock_->PutExperience(TokenBatch(columns), indexes);
  }
  // Of unfinished rows, with `completed` for each.
  absl::Status PutResponses(const ExperienceIndexes& indexes, const Tokens& responses, const Ints& completed) {
    Ints lengths;
    for (const auto& row : responses) lengths.push_back(static_cast<int64_t>(row.size()));
    return Put(indexes, {{"responses", responses},
                         {"response_length", Ones(lengths)},
                         {"input_ids", responses},
                         {"rollout_completed", Ones(completed)}});
  }

  absl::StatusOr<std::optional<Experience>> TryGet(const std::string& consumer, const Names& columns,
                                                   const GetOptions& options) {
    return dock_->GetExperience(consumer, columns, options);
  }
  Experience Sample(const std::string& consumer, const Names& columns, const GetOptions& options) {
    absl::StatusOr<std::optional<Experience>> got = TryGet(consumer, columns, options);
    EXPECT_EQ(got.status(), absl::OkStatus());
    if (!got.ok()) return {};
    EXPECT_TRUE(got->has_value()) << "nothing yet";
    return got->has_value() ? **std::move(got) : Experience();
  }
  // Rows, not groups.
  Experience SampleRows(const std::string& consumer, const Names& columns, int64_t count) {
    return Sample(consumer, columns, {.experience_count = count, .get_n_samples = false});
  }
  bool NothingYet(const std::string& consumer, const Names& columns, const GetOptions& options) {
    const absl::StatusOr<std::optional<Experience>> got = TryGet(consumer, columns, options);
    EXPECT_EQ(got.status(), absl::OkStatus());
    return got.ok() && !got->has_value();
  }

  Tokens Read(const std::string& column, const Ints& indexes) {
    const absl::StatusOr<Batch> batch = dock_->Get({column}, indexes);
    EXPECT_EQ(batch.status(), absl::OkStatus());
    return batch.ok() ? TokensOf(*batch, column) : Tokens();
  }
  bool AllConsumed(const std::string& consumer) {
    const absl::StatusOr<bool> all = dock_->AllConsumed(consumer);
    EXPECT_EQ(all.status(), absl::OkStatus());
    return all.ok() && *all;
  }
  std::vector<bool> Consumed(const std::string& consumer) { return dock_->GetConsumerStatus()->at(consumer); }
};

}  // namespace tdock::mindspeed
