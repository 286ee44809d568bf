// The stages of a run: what the recipe's plan needs on the dock, what they are fed with, and how those of a step are
// carried out:
//
//   the batch of the step, in turn or at the same time             executors.h
//   first rounds, until there is enough to train on                gather.h
//   what was answered ahead                                        streaming.h
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/workers.h"
#include "data/loader.h"
#include "trainer/checkpoint/state.h"
#include "trainer/executor/run_moment.h"
#include "trainer/executor/stage_watch.h"
#include "trainer/executor/timeline.h"
#include "trainer/loop/executors.h"
#include "trainer/loop/feeder.h"
#include "trainer/loop/gather.h"
#include "trainer/loop/inputs.h"
#include "trainer/loop/phase_meter.h"
#include "trainer/loop/recipe.h"
#include "trainer/loop/run_context.h"
#include "trainer/loop/run_models.h"
#include "trainer/loop/run_partition.h"
#include "trainer/loop/streaming.h"
#include "trainer/stages/stage.h"
#include "trainer/stages/step_metrics.h"
#include "trainer/stages/weight_feed.h"

namespace tdock::trainer {

// Its state is that of the stages, of what they are fed with, and how far an open step has got. Used by one thread at a
// time.
class RunStages final : public Stateful {
 public:
  // What they are made of. Everything outlives them.
  struct Parts {
    Recipe& recipe;
    const RunContext& context;
    const RunInputs& inputs;
    reward::Reward& reward;
    Workers& workers;
    RunModels& models;
    RunPartition& partition;
    PhaseMeter& meter;
    Timeline& timeline;
    int64_t total_steps;  // for schedules
  };
  explicit RunStages(const Parts& parts);

  // Makes the stages, and, with `make_partition`, on the dock what they need. Call it once, before all that follows.
  absl::Status Make(const std::function<absl::Status(const PartitionOptions&)>& make_partition);
  const Plan& plan() const { return plan_; }
  // Whether the policy is trained by ranks of which each has a part of its weights, and saves it.
  bool SplitsPolicy() const;
  // Where the dock has the stages.
  std::vector<ExplainedStage> Explained() const;
  // The partition of the rounds; empty if there are none.
  std::string rounds() const { return gather_.has_value() ? gather_->partition() : std::string(); }

  // Where the run answers ahead: begins with that, once `steps` steps are done, when the first step after it is carried
  // out.
  void Begin(int64_t steps);
  // Whether there is anything for another step. Reads it.
  absl::StatusOr<bool> HasMore();

  // Begins a step, and feeds what it trains on. Step 0 has nothing to carry out.
  absl::Status OpenStep(int64_t step, StepMetrics& metrics);
  // Carries out its stages: after an interruption, those that it has not had. May throw.
  absl::Status RunStep(int64_t step, StepMetrics& metrics);
  void CloseStep();

  // Whether a checkpoint of this moment could be gone on from. Rows on a dock of others are not in it: a step that they
  // take part in is carried out again, from the state before it, unless it has trained. Thread-safe.
  bool CanBeSaved() const { return !parts_.partition.shared() || !has_trained_; }

  // Whether an average of the policy's weights is kept, and Stage::SwapAverage() of the stage that keeps it.
  bool averages() const { return Averaging() != nullptr; }
  absl::Status SwapAverage();

  // Calls `body` while nothing is fed, so that the state and the dock belong together.
  absl::Status WhileNotFeeding(const std::function<absl::Status()>& body);
  // Ends what has threads of its own; the error that has ended it before, if one has.
  absl::Status Stop() { return streaming_.has_value() ? streaming_->Stop() : absl::OkStatus(); }

  // Among the names of the run's state.
  void Save(State& state) const override;
  absl::Status Load(const State& state) override;
  // The rows in a saved state that were answered ahead of the step that trains on them.
  static absl::StatusOr<int64_t> AheadIn(const State& state);
  // Of the order of the data.
  const text::ContentHash& data_order() const { return feeder_.order(); }
  // Whether the data were others than those of the state that was loaded, and are gone through from their beginning.
  bool has_begun_data_anew() const { return feeder_.begun_anew(); }

 private:
  RunParts PartsOfPlan();
  Stage* Averaging() const;  // null: none is kept
  void SetFeeder();
  // Leaves to other processes what they carry out.
  absl::Status AttachRemote();
  // Registers the stages that do not come in rounds as consumers.
  absl::Status RegisterStages();
  std::vector<std::string> RetainedFor() const;
  void BeginStep(ConsumerOptions& consumer) const;
  absl::Status OnNewWeights(int64_t version);
  absl::Status ServeWeights();
  absl::Status GatherRows(StageContext& context);
  absl::StatusOr<int64_t> FeedRound(StepMetrics& metrics);
  void ReportData(StepMetrics& metrics);
  absl::Status ReportDock(StepMetrics& metrics);
  absl::Status CheckStop() const;

  const Parts parts_;
  const RunConfig& config_;
  const bool streams_;  // whether prompts are answered ahead of the step that trains on them
  StageRunner runner_;
  Feeder feeder_;
  WeightFeed served_;
  StageWatch watch_;
  Plan plan_;  // refers to what is above
  std::optional<Gather> gather_;
  std::optional<StageRun> stage_run_;
  bool is_open_ = false;                   // a step
  size_t next_ = 0;                        // the first stage of it that it has not had, or had a part of
  std::atomic<bool> has_trained_ = false;  // a stage of it, or has begun to
  std::optional<Streaming> streaming_;     // last: its threads use what is above
};

}  // namespace tdock::trainer
