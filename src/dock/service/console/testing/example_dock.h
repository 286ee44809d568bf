// A small dock for tests: two prompts of GRPO with four answers each, in the middle of a step.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/testing/fake_clock.h"
#include "tdock/local_dock.h"

namespace tdock::console {

// Rows 0 to 3 are group 7 and have responses and rewards, rows 4 to 7 are group 8 and have prompts; `rollout` has held
// rows 4 and 5 for 90 s; `actor` has completed row 0 in step 3 and may have the other three of its group.
struct ExampleDock {
  FakeClock clock;
  std::unique_ptr<Dock> dock = MakeLocalDock({.clock = &clock});
  Taken held = {};

  ExampleDock() {
    Expect(dock->CreatePartition({.name = "train",
                                  .columns = {{"prompts", ColumnType::Ragged(DType::kI32)},
                                              {"responses", ColumnType::Ragged(DType::kI32)},
                                              {"rewards", ColumnType::Dense(DType::kF32)}},
                                  .group_size = 4,
                                  .retain_for = {"actor"}}));
    Expect(dock->RegisterConsumer("train", {.name = "rollout", .reads = {"prompts"}, .writes = {"responses"}}));
    Expect(dock->RegisterConsumer("train", {.name = "reward", .reads = {"responses"}, .writes = {"rewards"}}));
    Expect(dock->RegisterConsumer("train", {.name = "actor", .reads = {"responses", "rewards"}, .checkpointed = true}));
    PutRequest feed{.partition = "train", .groups = {7, 7, 7, 7, 8, 8, 8, 8}};
    feed.keys = {"a/0", "", "", "", "", "", "", ""};
    feed.tags = {{{"split", "hard"}}, {}, {}, {}, {}, {}, {}, {}};
    Expect(feed.batch.Add("prompts", Column::FromRows<int32_t>(std::vector<std::vector<int32_t>>(8, {1, 2, 3}))));
    Expect(dock->Put(feed).status());

    FillRequest answers{.partition = "train", .lease = Take("rollout", 4).lease};
    answers.rows = {0, 1, 2, 3};
    answers.weights_version = 2;
    Expect(answers.batch.Add("responses", Column::FromRows<int32_t>({{4}, {5, 6}, {7}, {8, 9}})));
    Expect(dock->Fill(answers));
    FillRequest scores{.partition = "train", .rows = {0, 1, 2, 3}, .lease = Take("reward", 4).lease};
    Expect(scores.batch.Add("rewards", Column::FromValues<float>({0, 1, 1, 0})));
    Expect(dock->Fill(scores));
    Expect(dock->PublishWeights("train", 2));
    Expect(dock->Complete({.partition = "train", .lease = Take("actor", 1).lease, .step = 3}));
    held = Take("rollout", 2);
    clock.Advance(absl::Seconds(90));
  }

 private:
  static void Expect(const absl::Status& status) { EXPECT_EQ(status, absl::OkStatus()); }

  Taken Take(const std::string& consumer, int64_t count) {
    absl::StatusOr<Taken> taken = dock->Take({.partition = "train", .consumer = consumer, .min = count, .max = count});
    Expect(taken.status());
    return taken.ok() ? *std::move(taken) : Taken();
  }
};

}  // namespace tdock::console
