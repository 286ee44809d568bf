#include "trainer/loop/executors.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "trainer/stages/guard.h"

namespace tdock::trainer {
namespace {

constexpr int kMostRequeues = 4;
constexpr absl::Duration kBetweenQuestions = absl::Milliseconds(50);

// What no stage was given would leave a step without anything that it trains on.
absl::Status NoneLeft(int64_t rows) {
  return absl::FailedPreconditionError(
      absl::StrCat("all ", rows, " samples of the step were left out before the last stage"));
}

absl::StatusOr<int64_t> RowsIn(const StageRun& run) {
  TDOCK_ASSIGN_OR_RETURN(const PartitionStatus status, run.partition.dock().GetStatus(run.partition.name()));
  return status.rows;
}

absl::StatusOr<int64_t> CompletedBy(const StageRun& run, const Stage& stage) {
  TDOCK_ASSIGN_OR_RETURN(const ConsumerStatus status,
                         run.partition.dock().GetConsumerStatus(run.partition.name(), stage.consumer().name));
  return status.completed;
}

int64_t UnitRows(const StageRun& run, const Stage& stage) {
  return stage.consumer().unit == Unit::kGroup ? run.group_size : 1;
}

// 0: all.
int64_t UnitsAtATime(const StageRun& run, const Stage& stage) {
  return run.section.dispatch_size(stage.consumer().name) / UnitRows(run, stage);
}

// The part of a thread for a stage that another process carries out: waits for its input, and then for it.
absl::Status Follow(const StageRun& run, const Stage& stage, StageContext& context) {
  const std::string& name = stage.consumer().name;
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(const ConsumerStatus status,
                           run.partition.dock().GetConsumerStatus(run.partition.name(), name));
    if (status.waiting == 0) break;
    TDOCK_RETURN_IF_ERROR(context.check_stop());
    absl::SleepFor(kBetweenQuestions);
  }
  return run.partition.Await(stage, 0, context).status();
}

}  // namespace

absl::StatusOr<int64_t> OpenRows(const StageRun& run, const Stage& stage) {
  TDOCK_ASSIGN_OR_RETURN(const ConsumerStatus status,
                         run.partition.dock().GetConsumerStatus(run.partition.name(), stage.consumer().name));
  return status.waiting + status.ready + status.leased;
}

namespace {

// The stage on `open` rows, as many at a time as it may take.
absl::Status RunInPieces(const StageRun& run, Stage& stage, int64_t open, StageContext& context) {
  const int64_t rows_of_unit = UnitRows(run, stage), most = UnitsAtATime(run, stage);
  if (most > 0 && open / rows_of_unit > most) context.whole_step = false;
  while (open > 0) {
    const int64_t units = open / rows_of_unit;
    TDOCK_RETURN_IF_ERROR(run.runner.Run(stage, most > 0 ? std::min(most, units) : units, context).status());
    TDOCK_ASSIGN_OR_RETURN(open, OpenRows(run, stage));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunInTurn(const StageRun& run, size_t first, StageContext& context, const BeginStage& begin) {
  TDOCK_ASSIGN_OR_RETURN(const int64_t rows, RowsIn(run));
  for (size_t i = first; i < run.stages.size(); ++i) {
    Stage& stage = *run.stages[i];
    const std::string& name = stage.consumer().name;
    if (rows > 0 && run.partition.IsExternal(stage)) {
      TDOCK_RETURN_IF_ERROR(begin(stage));
      run.meter.Begin();
      TDOCK_RETURN_IF_ERROR(run.partition.Await(stage, 0, context).status());
      run.meter.End(name, context.metrics);
      continue;
    }
    TDOCK_ASSIGN_OR_RETURN(const int64_t open, OpenRows(run, stage));
    if (open == 0) {
      if (i + 1 == run.stages.size() && rows > 0) return NoneLeft(rows);
      continue;
    }
    TDOCK_RETURN_IF_ERROR(begin(stage));
    context.whole_step = open == rows;
    context.published = 0;
    run.meter.Begin();
    run.timeline.Work(name, open);
    run.context.progress.Doing(name);
    context.progress = [&timeline = run.timeline, name] { timeline.Progress(name); };
    const absl::Status status = RunInPieces(run, stage, open, context);
    run.timeline.End(name);
    TDOCK_RETURN_IF_ERROR(status);
    run.meter.End(name, context.metrics);
  }
  return absl::OkStatus();
}

StageTask TaskOf(const StageRun& run, const StageOnThread& on_thread) {
  Stage& stage = *on_thread.stage;
  State state;
  stage.Save(state);
  StageTask task{.name = stage.consumer().name,
                 .group_size = UnitRows(run, stage),
                 .most_units = UnitsAtATime(run, stage),
                 .in_order = on_thread.in_order || run.section.guarantee_order,
                 .takes_more = on_thread.takes_more && UnitsAtATime(run, stage) == 0,
                 // What has a state may have changed it.
                 .restartable = !stage.trains() && state.empty()};
  task.run = [&run, &stage, on_thread, requeued = 0](const Taken& taken, const StageSigns& signs) mutable {
    return Guarded([&]() -> absl::Status {
      // Of this try: what it says of rows that it has not put when it fails, the next try says again.
      StepMetrics figures;
      StageContext context{on_thread.step, figures};
      context.check_stop = signs.check_stop;
      context.progress = signs.progress;
      context.whole_step = on_thread.in_order && UnitsAtATime(run, stage) == 0;
      context.on_put = [&] { figures.MoveTo(*on_thread.metrics); };
      TDOCK_RETURN_IF_ERROR(on_thread.begin(stage));
      const absl::StatusOr<StageRunner::Round> round = run.runner.RunTaken(stage, taken, context, signs.more);
      // One that is interrupted goes on where it was.
      if (round.ok() || absl::IsCancelled(round.status())) figures.MoveTo(*on_thread.metrics);
      TDOCK_RETURN_IF_ERROR(round.status());
      requeued = round->requeued_units > 0 ? requeued + 1 : 0;
      if (requeued <= kMostRequeues) return absl::OkStatus();
      return absl::InternalError(absl::StrCat("gave back ", round->requeued_units, " of its units ", requeued,
                                              " times in a row; it may do so ", kMostRequeues, " times"));
    });
  };
  return task;
}

StageThreads::Options ThreadOptions(const StageRun& run, std::function<absl::Status()> check_stop) {
  return {.clock = run.context.clock,
          .timeline = run.timeline,
          .check_stop = std::move(check_stop),
          .patience = absl::Seconds(run.section.stage_timeout),
          .most_restarts = static_cast<int>(run.section.stage_retries),
          .log = run.context.log,
          .at_start = [] { at::init_num_threads(); },
          .give_up = run.context.give_up,
          .grace = GraceOf(run.section)};
}

absl::Duration GraceOf(const ExecutorSection& section) {
  return std::min(absl::Seconds(section.stage_timeout), absl::Seconds(30));
}

absl::Status RunTogether(const StageRun& run, size_t first, StageContext& context, const BeginStage& begin) {
  TDOCK_ASSIGN_OR_RETURN(const int64_t rows, RowsIn(run));
  TDOCK_ASSIGN_OR_RETURN(const int64_t before, CompletedBy(run, *run.stages.back()));
  const std::span<const std::unique_ptr<Stage>> stages = run.stages.subspan(first);
  std::vector<StepMetrics> metrics(stages.size());
  std::vector<StageTask> tasks;
  std::vector<std::thread> followers;
  std::atomic<bool> failed = false;
  std::vector<absl::Status> followed(stages.size());
  run.meter.Begin();
  for (size_t i = 0; i < stages.size(); ++i) {
    Stage& stage = *stages[i];
    if (run.partition.IsExternal(stage)) {
      followers.emplace_back([&, i] {
        StageContext own{context.step, metrics[i]};
        own.check_stop = [&]() -> absl::Status {
          TDOCK_RETURN_IF_ERROR(context.check_stop());
          return failed ? absl::CancelledError("the other stages have ended") : absl::OkStatus();
        };
        followed[i] = Guarded([&] { return Follow(run, *stages[i], own); });
      });
      continue;
    }
    tasks.push_back(TaskOf(run, {.stage = &stage,
                                 .step = context.step,
                                 .metrics = &metrics[i],
                                 .in_order = stage.together() != Together::kNothing,
                                 .begin = begin}));
  }
  StageThreads::Options options = ThreadOptions(run, context.check_stop);
  options.until_done = true;
  absl::Status status;
  {
    StageThreads threads(run.partition.dock(), run.partition.name(), std::move(tasks), std::move(options));
    status = threads.Join();
  }
  failed = !status.ok();
  for (std::thread& follower : followers) follower.join();
  for (const StepMetrics& of_stage : metrics) context.metrics.Add(of_stage);
  run.meter.End("stages", context.metrics);
  TDOCK_RETURN_IF_ERROR(status);
  for (const absl::Status& external : followed) TDOCK_RETURN_IF_ERROR(external);
  TDOCK_ASSIGN_OR_RETURN(const int64_t after, CompletedBy(run, *run.stages.back()));
  return rows > 0 && after == before ? NoneLeft(rows) : absl::OkStatus();
}

}  // namespace tdock::trainer
