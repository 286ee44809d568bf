// How the stages of a step are carried out: one after another, or at the same time. What they compute is the same, bit
// for bit.
//
//   in turn:    rollout ███████████▏                       at the same time:    rollout ███████████▏
//               reward             ▕████▏                                       reward    ▕█ ██ █ ██▏
//               ref                      ▕█████▏                                ref         ▕██ ██ █▏
//               actor                           ▕██████                         actor                ▕██████
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trainer/executor/stage_threads.h"
#include "trainer/executor/stage_watch.h"
#include "trainer/executor/timeline.h"
#include "trainer/loop/phase_meter.h"
#include "trainer/loop/run_partition.h"
#include "trainer/loop/sections.h"
#include "trainer/stages/stage.h"

namespace tdock::trainer {

// What stages are carried out with. Everything outlives it.
struct StageRun {
  RunPartition& partition;
  StageRunner& runner;
  std::span<const std::unique_ptr<Stage>> stages;  // of the plan, in the order of a step
  int64_t group_size;
  const ExecutorSection& section;
  PhaseMeter& meter;
  Timeline& timeline;
  StageWatch& watch;  // of those that have no thread of their own, where others have
  const RunContext& context;
};

// Carries out those from `first` on, on all rows of the partition that they have not had. `begin` is called before
// each, by the thread that then works.
//
// Interrupted by context.check_stop, or by an error, the same call goes on with what was left. FailedPrecondition if
// the last one gets no row of those that there were.
using BeginStage = std::function<absl::Status(Stage&)>;
absl::Status RunInTurn(const StageRun& run, size_t first, StageContext& context, const BeginStage& begin);
absl::Status RunTogether(const StageRun& run, size_t first, StageContext& context, const BeginStage& begin);

// The stage as threads carry it out, with figures of its own. Both must outlive the task.
struct StageOnThread {
  Stage* stage = nullptr;
  int64_t step = 0;  // see StageContext
  StepMetrics* metrics = nullptr;
  bool in_order = false;
  bool takes_more = false;  // see StageTask
  BeginStage begin = [](Stage&) { return absl::OkStatus(); };
};
StageTask TaskOf(const StageRun& run, const StageOnThread& on_thread);
// What all of them run with.
StageThreads::Options ThreadOptions(const StageRun& run, std::function<absl::Status()> check_stop);

// How long a stage that hangs is waited for after that was noticed.
absl::Duration GraceOf(const ExecutorSection& section);

// Rows that a stage has not had.
absl::StatusOr<int64_t> OpenRows(const StageRun& run, const Stage& stage);

}  // namespace tdock::trainer
