// For tests: a recipe that tells when its stages have worked.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "trainer/recipes/testing/faulty_recipe.h"

namespace tdock::trainer {

// Called by the thread of a stage after it has worked without an error, with the step.
using StageWorked = std::function<void(const Stage& stage, int64_t step)>;

class ToldStage final : public Stage {
 public:
  ToldStage(std::unique_ptr<Stage> stage, StageWorked worked) : stage_(std::move(stage)), worked_(std::move(worked)) {}

  const ConsumerOptions& consumer() const override { return stage_->consumer(); }
  bool uses_policy() const override { return stage_->uses_policy(); }
  Together together() const override { return stage_->together(); }
  bool trains() const override { return stage_->trains(); }
  Stateful* average() override { return stage_->average(); }
  absl::Status SwapAverage() override { return stage_->SwapAverage(); }
  absl::Status Report(const Rows& written, StepMetrics& metrics) const override {
    return stage_->Report(written, metrics);
  }
  void Save(State& state) const override { stage_->Save(state); }
  absl::Status Load(const State& state) override { return stage_->Load(state); }

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    absl::StatusOr<StageOutput> output = stage_->Run(rows, context);
    if (output.ok()) worked_(*stage_, context.step);
    return output;
  }

 private:
  const std::unique_ptr<Stage> stage_;
  const StageWorked worked_;
};

struct NoFaults {
  Faults none{0, 0};
};

// Wraps a recipe, and tells when its stages have worked.
class ToldRecipe final : private NoFaults, public FaultyRecipe {
 public:
  ToldRecipe(std::unique_ptr<Recipe> recipe, StageWorked worked)
      : FaultyRecipe(std::move(recipe), none), worked_(std::move(worked)) {}

  absl::StatusOr<Plan> MakePlan(const RunParts& parts) override {
    absl::StatusOr<Plan> plan = FaultyRecipe::MakePlan(parts);
    if (!plan.ok()) return plan;
    for (auto& stage : plan->stages) stage = std::make_unique<ToldStage>(std::move(stage), worked_);
    return plan;
  }

 private:
  const StageWorked worked_;
};

}  // namespace tdock::trainer
