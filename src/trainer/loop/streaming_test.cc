#include "trainer/loop/streaming.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tdock::trainer {
namespace {

using Columns = std::vector<std::string>;

class NamedStage final : public Stage {
 public:
  struct Traits {
    bool uses_policy = false;
    bool has_state = false;
  };
  NamedStage(const std::string& name, Columns reads, Columns writes, Traits traits)
      : consumer_{.name = name, .reads = std::move(reads), .writes = std::move(writes)}, traits_(traits) {}

  const ConsumerOptions& consumer() const override { return consumer_; }
  bool uses_policy() const override { return traits_.uses_policy; }
  Together together() const override { return Together::kNothing; }
  void Save(State& state) const override {
    if (traits_.has_state) state.SetNumber("state", 1);
  }
  absl::StatusOr<StageOutput> Run(const Rows& /*rows*/, StageContext& /*context*/) override { return StageOutput(); }

 private:
  const ConsumerOptions consumer_;
  const Traits traits_;
};

using Stages = std::vector<std::unique_ptr<Stage>>;

void Add(Stages& stages, const std::string& name, Columns reads, Columns writes, NamedStage::Traits traits = {}) {
  stages.push_back(std::make_unique<NamedStage>(name, std::move(reads), std::move(writes), traits));
}

Columns ReadsInStep(const Stages& stages, size_t number) {
  Columns reads = stages[number]->consumer().reads;
  AddNeedsOfStep(stages, number, reads);
  return reads;
}

TEST(Streaming, AStepBeginsWithRowsThatHaveWhatAnyOfItsStagesReads) {
  Stages stages;
  Add(stages, "rollout", {"prompts"}, {"responses", "text"}, {.uses_policy = true});
  Add(stages, "reward", {"text"}, {"rewards"});
  Add(stages, "ref", {"responses"}, {"ref_log_prob"});
  Add(stages, "advantage", {"rewards"}, {"advantages"}, {.has_state = true});
  Add(stages, "actor", {"prompts", "responses", "ref_log_prob", "advantages"}, {}, {.uses_policy = true});
  EXPECT_EQ(StreamedStages(stages), 3U);
  for (size_t ahead = 0; ahead < 3; ++ahead) EXPECT_EQ(ReadsInStep(stages, ahead), stages[ahead]->consumer().reads);
  EXPECT_EQ(ReadsInStep(stages, 3), (Columns{"rewards", "responses", "ref_log_prob"}));
  EXPECT_EQ(ReadsInStep(stages, 4), stages[4]->consumer().reads);
}

TEST(Streaming, WhatTheFirstStageOfAStepDidNotTakeIsNotForTheOthers) {
  Stages stages;
  Add(stages, "rollout", {"prompts"}, {"responses"}, {.uses_policy = true});
  Add(stages, "reward", {"responses"}, {"rewards"});
  Add(stages, "old_log_prob", {"responses"}, {"old_log_probs"}, {.uses_policy = true});
  Add(stages, "advantage", {"rewards"}, {"advantages"}, {.has_state = true});
  Add(stages, "actor", {"responses", "advantages"}, {}, {.uses_policy = true});
  EXPECT_EQ(StreamedStages(stages), 2U);
  EXPECT_EQ(ReadsInStep(stages, 2), (Columns{"responses", "rewards"}));
  EXPECT_EQ(ReadsInStep(stages, 3), (Columns{"rewards", "old_log_probs"}));
  EXPECT_EQ(ReadsInStep(stages, 4), (Columns{"responses", "advantages", "old_log_probs"}));
}

}  // namespace
}  // namespace tdock::trainer
