#include "bench/torch/update_run.h"

#include <utility>

#include "core/base/status.h"
#include "tdock/local_dock.h"
#include "trainer/stages/step_metrics.h"

namespace tdock::bench {
namespace {

constexpr char kPartition[] = "train";

}  // namespace

UpdateRun::UpdateRun(Clock& clock, std::unique_ptr<trainer::Stage> stage, Samples samples)
    : clock_(clock),
      stage_(std::move(stage)),
      samples_(std::move(samples)),
      dock_(MakeLocalDock({.clock = &clock})),
      runner_(*dock_, kPartition) {}

absl::StatusOr<std::unique_ptr<UpdateRun>> UpdateRun::Create(Clock& clock, std::unique_ptr<trainer::Stage> stage,
                                                             std::vector<ColumnSpec> columns, Samples samples) {
  std::unique_ptr<UpdateRun> run(new UpdateRun(clock, std::move(stage), std::move(samples)));
  TDOCK_RETURN_IF_ERROR(run->dock_->CreatePartition({.name = kPartition,
                                                     .columns = std::move(columns),
                                                     .group_size = run->samples_.group_size,
                                                     .retain_for = {run->stage_->consumer().name}}));
  TDOCK_RETURN_IF_ERROR(run->runner_.Add(*run->stage_));
  return run;
}

absl::StatusOr<double> UpdateRun::TokensPerSecond() {
  const PutRequest request{.partition = kPartition, .batch = samples_.batch, .groups = samples_.groups};
  TDOCK_RETURN_IF_ERROR(dock_->Put(request).status());
  trainer::StepMetrics metrics;
  trainer::StageContext context{1, metrics};
  TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock_, [&] {
                           return runner_.Run(*stage_, samples_.batch.rows(), context).status();
                         }));
  return static_cast<double>(samples_.tokens) / seconds;
}

}  // namespace tdock::bench
