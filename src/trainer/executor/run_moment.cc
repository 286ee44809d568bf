#include "trainer/executor/run_moment.h"

#include <set>
#include <utility>

namespace tdock::trainer {
namespace {

std::optional<double> Find(const std::map<std::string, double>& metrics, const std::string& name) {
  const auto found = metrics.find(name);
  return found != metrics.end() ? std::optional(found->second) : std::nullopt;
}

StageExplanation DoingOf(const std::string& name, const std::map<std::string, Timeline::Doing>& all, absl::Time now) {
  StageExplanation stage{.name = name};
  const auto found = all.find(name);
  if (found == all.end()) return stage;
  const Timeline::Doing& doing = found->second;
  stage.does = doing.works ? StageExplanation::Does::kWorks : StageExplanation::Does::kWaits;
  stage.since = now - doing.since;
  stage.progress = now - doing.progress;
  stage.rows = doing.rows;
  stage.which = doing.which;
  return stage;
}

// Adds what the dock says of its consumer.
void AddDock(Dock& dock, const std::string& partition, StageExplanation& stage) {
  const absl::StatusOr<ConsumerStatus> counts = dock.GetConsumerStatus(partition, stage.name);
  if (!counts.ok()) {
    stage.dock = std::string(counts.status().message());
    return;
  }
  stage.counts = *counts;
  const bool waits = stage.does == StageExplanation::Does::kWaits;
  if (!waits && counts->waiting + counts->ready + counts->leased + counts->quarantined == 0) return;
  const absl::StatusOr<std::string> why = dock.Explain(partition, stage.name);
  stage.dock = why.ok() ? *why : std::string(why.status().message());
}

}  // namespace

void RunMoment::Enter(int64_t step, std::string phase) {
  const absl::Time now = clock_.Now();
  const MutexLock lock(mu_);
  step_ = step;
  phase_ = std::move(phase);
  since_ = now;
}

void RunMoment::NoteStep(const std::map<std::string, double>& metrics) {
  const MutexLock lock(mu_);
  tokens_per_second_ = Find(metrics, "perf/throughput");
  staleness_mean_ = Find(metrics, "async/staleness/mean");
  staleness_max_ = Find(metrics, "async/staleness/max");
}

RunExplanation RunMoment::Now() const {
  const absl::Time now = clock_.Now();
  const MutexLock lock(mu_);
  return {.step = step_,
          .phase = phase_,
          .since = now - since_,
          .tokens_per_second = tokens_per_second_,
          .staleness_mean = staleness_mean_,
          .staleness_max = staleness_max_};
}

RunExplanation ExplainRun(const RunMoment& moment, const Timeline& timeline, Dock& dock,
                          std::span<const ExplainedStage> stages, Clock& clock) {
  RunExplanation run = moment.Now();
  const std::map<std::string, Timeline::Doing> doing = timeline.Now();
  const absl::Time now = clock.Now();
  std::set<std::string> names, partitions;
  for (const ExplainedStage& of_run : stages) {
    StageExplanation stage = DoingOf(of_run.name, doing, now);
    stage.external = of_run.external;
    AddDock(dock, of_run.partition, stage);
    run.stages.push_back(std::move(stage));
    names.insert(of_run.name);
    partitions.insert(of_run.partition);
  }
  for (const auto& [name, what] : doing) {
    if (!names.contains(name)) run.stages.push_back(DoingOf(name, doing, now));
  }
  for (const std::string& partition : partitions) {
    const absl::StatusOr<PartitionStatus> status = dock.GetStatus(partition);
    if (status.ok()) {
      run.rows += status->rows;
    } else {
      run.dock_error = std::string(status.status().message());
    }
  }
  return run;
}

}  // namespace tdock::trainer
