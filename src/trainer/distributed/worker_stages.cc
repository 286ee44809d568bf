#include "trainer/distributed/worker_stages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/process_memory.h"
#include "core/base/status.h"
#include "trainer/stages/guard.h"

namespace tdock::trainer {
namespace {

int64_t ResidentBytes(Env& env) { return ResidentMemory(env).value_or(0); }

}  // namespace

WorkerStages::WorkerStages(std::span<const std::unique_ptr<Stage>> stages, Dock& dock, Env& env)
    : dock_(dock), env_(env) {
  for (const std::unique_ptr<Stage>& stage : stages) {
    auto served = std::make_unique<Served>();
    served->stage = stage.get();
    stages_.emplace(stage->consumer().name, std::move(served));
  }
}

void WorkerStages::Interrupt(const std::string& stage) {
  if (const auto found = stages_.find(stage); found != stages_.end()) found->second->interrupted = true;
}

absl::StatusOr<Rows> WorkerStages::RowsOf(const Stage& stage, const StageShare& share) {
  return dock_.Fetch({.partition = share.partition, .rows = share.rows, .columns = stage.consumer().reads});
}

absl::StatusOr<ShareResult> WorkerStages::Run(const StageShare& share, const Signs& signs) {
  const auto found = stages_.find(share.stage);
  if (found == stages_.end()) {
    return absl::NotFoundError(absl::StrCat("this process has no stage '", share.stage, "'"));
  }
  Served& served = *found->second;
  served.interrupted = false;
  ShareResult result{.began_ns = absl::GetCurrentTimeNanos(), .memory_before = ResidentBytes(env_)};
  TDOCK_ASSIGN_OR_RETURN(Rows rows, RowsOf(*served.stage, share));
  StepMetrics metrics;
  StageContext context{share.step, metrics};
  context.whole_step = share.whole_step;
  context.check_stop = [&]() -> absl::Status {
    if (served.interrupted) return absl::CancelledError("interrupted");
    return signs.check_stop();
  };
  context.progress = signs.progress;
  StageRunner runner(dock_, share.partition);
  TDOCK_ASSIGN_OR_RETURN(result.round,
                         runner.RunTaken(*served.stage, {.lease = share.lease, .rows = std::move(rows)}, context));
  result.published = context.published;
  State state;
  metrics.Save(state);
  result.metrics = state.texts();
  result.memory_after = ResidentBytes(env_);
  result.ended_ns = absl::GetCurrentTimeNanos();
  return result;
}

}  // namespace tdock::trainer
