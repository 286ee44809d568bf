#include "trainer/loop/streaming.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "trainer/stages/guard.h"

namespace tdock::trainer {
namespace {

// How long a step waits at most before it looks whether anything has failed.
constexpr absl::Duration kSlice = absl::Milliseconds(100);

}  // namespace

size_t StreamedStages(std::span<const std::unique_ptr<Stage>> stages) {
  size_t streamed = 0;
  for (; streamed < stages.size(); ++streamed) {
    const Stage& stage = *stages[streamed];
    State state;
    stage.Save(state);
    const bool needs_weights = stage.uses_policy() && streamed > 0;
    if (needs_weights || stage.together() == Together::kResult || !state.empty()) break;
  }
  return streamed;
}

void AddNeedsOfStep(std::span<const std::unique_ptr<Stage>> stages, size_t number, std::vector<std::string>& reads) {
  const size_t streamed = StreamedStages(stages);
  const auto add = [&reads](const std::string& column) {
    if (std::find(reads.begin(), reads.end(), column) == reads.end()) reads.push_back(column);
  };
  if (number < streamed) return;
  if (number > streamed) {
    for (const std::string& column : stages[streamed]->consumer().writes) add(column);
    return;
  }
  std::set<std::string> written;
  for (const auto& stage : stages.first(streamed)) {
    written.insert(stage->consumer().writes.begin(), stage->consumer().writes.end());
  }
  for (const auto& stage : stages.subspan(streamed)) {
    for (const std::string& column : stage->consumer().reads) {
      if (written.contains(column)) add(column);
    }
  }
}

Streaming::Streaming(const StageRun& run, Feeder& feeder, const Options& options)
    : run_(run),
      feeder_(feeder),
      options_(options),
      streamed_(StreamedStages(run.stages)),
      steps_left_(options.steps) {}

Streaming::~Streaming() { Stop().IgnoreError(); }

absl::Status Streaming::Start() {
  TDOCK_RETURN_IF_ERROR(options_.serve_weights());
  started_ = true;
  std::vector<StageTask> tasks;
  for (size_t i = 0; i < streamed_; ++i) {
    metrics_.push_back(std::make_unique<StepMetrics>());
    tasks.push_back(
        TaskOf(run_, {.stage = run_.stages[i].get(), .metrics = metrics_.back().get(), .takes_more = true}));
  }
  if (!options_.on_threads) {
    pumped_ = std::move(tasks);
    return absl::OkStatus();
  }
  threads_ = std::make_unique<StageThreads>(run_.partition.dock(), run_.partition.name(), std::move(tasks),
                                            ThreadOptions(run_, [] { return absl::OkStatus(); }));
  feeding_ = std::thread([this] { Feed(); });
  return absl::OkStatus();
}

absl::StatusOr<bool> Streaming::FeedOnce() {
  const MutexLock lock(mu_);
  if (exhausted_ || stopping_ || training_) return false;
  TDOCK_ASSIGN_OR_RETURN(const PartitionStatus status, run_.partition.dock().GetStatus(run_.partition.name()));
  const int64_t groups = status.rows / run_.group_size;
  if (groups + options_.batch_groups > options_.most_groups) return false;
  if (options_.limited && groups >= steps_left_ * options_.step_groups) return false;
  const absl::StatusOr<bool> more = feeder_.ReadAhead();
  if (!more.ok()) return Annotate(more.status(), "reading the training data");
  if (!*more) {
    exhausted_ = true;
    TDOCK_RETURN_IF_ERROR(run_.partition.dock().Seal(run_.partition.name()));
    return false;
  }
  TDOCK_RETURN_IF_ERROR(feeder_.Feed(run_.partition.dock(), run_.partition.name(), fed_metrics_).status());
  return true;
}

void Streaming::Feed() {
  for (;;) {
    absl::StatusOr<bool> fed = Guarded([&] { return FeedOnce(); });
    const MutexLock lock(mu_);
    if (stopping_) return;
    if (!fed.ok()) {
      failed_ = fed.status();
      return;
    }
    if (exhausted_) return;
    // Dropped groups make room, too, of which nobody tells.
    if (!*fed) run_.context.clock.Wait(changed_, mu_, run_.context.clock.Now() + kSlice);
  }
}

absl::Status Streaming::FeederStatus() {
  const MutexLock lock(mu_);
  return failed_;
}

absl::Status Streaming::CheckThreads() {
  TDOCK_RETURN_IF_ERROR(FeederStatus());
  return threads_ != nullptr ? threads_->status() : absl::OkStatus();
}

absl::StatusOr<bool> Streaming::PumpOnce(StageContext& context) {
  TDOCK_ASSIGN_OR_RETURN(const bool fed, FeedOnce());
  bool any = fed;
  for (const StageTask& task : pumped_) {
    TDOCK_RETURN_IF_ERROR(context.check_stop());
    Dock& dock = run_.partition.dock();
    const int64_t most = options_.most_groups * run_.group_size;
    absl::StatusOr<Taken> taken =
        dock.Take({.partition = run_.partition.name(), .consumer = task.name, .min = 1, .max = most});
    if (absl::IsDeadlineExceeded(taken.status()) || absl::IsOutOfRange(taken.status())) continue;
    TDOCK_RETURN_IF_ERROR(taken.status());
    any = true;
    run_.timeline.Work(task.name, std::ssize(taken->rows.ids()));
    const absl::Status status = task.run(*taken, {.check_stop = context.check_stop, .progress = [] {}});
    run_.timeline.End(task.name);
    if (status.ok()) continue;
    // The rows are ready again; what counts is the stage's error.
    dock.Release({.partition = run_.partition.name(), .lease = taken->lease}).IgnoreError();
    return Annotate(status, absl::StrCat("stage '", task.name, "'"));
  }
  return any;
}

absl::StatusOr<std::optional<Taken>> Streaming::NextStep(StageContext& context) {
  Dock& dock = run_.partition.dock();
  const std::string& consumer = run_.stages[streamed_]->consumer().name;
  const absl::Time begun = run_.context.clock.Now();
  for (;;) {
    TDOCK_RETURN_IF_ERROR(context.check_stop());
    TDOCK_RETURN_IF_ERROR(CheckThreads());
    const absl::Time now = run_.context.clock.Now();
    absl::StatusOr<Taken> taken = dock.Take({.partition = run_.partition.name(),
                                             .consumer = consumer,
                                             .min = options_.step_groups,
                                             .max = options_.step_groups,
                                             .deadline = options_.on_threads ? now + kSlice : absl::InfinitePast()});
    if (taken.ok()) return std::optional<Taken>(*std::move(taken));
    if (absl::IsOutOfRange(taken.status())) return std::optional<Taken>();
    if (!absl::IsDeadlineExceeded(taken.status())) return taken.status();
    const absl::Duration patience = absl::Seconds(run_.section.stage_timeout);
    if (options_.on_threads) {
      if (threads_->idle() < patience || now < begun + patience) continue;
    } else {
      TDOCK_ASSIGN_OR_RETURN(const bool pumped, PumpOnce(context));
      if (pumped) continue;
    }
    return absl::DeadlineExceededError(
        absl::StrCat("the step waits for ", options_.step_groups, " groups for stage '", consumer,
                     "', and no stage has had anything to do",
                     options_.on_threads ? absl::StrCat(" for ", absl::FormatDuration(patience)) : "", ". ",
                     taken.status().message(), "\n", Describe()));
  }
}

absl::Status Streaming::RunStep(StageContext& context) {
  run_.timeline.Wait(kStepLane);
  absl::StatusOr<std::optional<Taken>> next = NextStep(context);
  run_.timeline.End(kStepLane);
  for (const auto& of_stage : metrics_) of_stage->MoveTo(context.metrics);
  fed_metrics_.MoveTo(context.metrics);
  TDOCK_RETURN_IF_ERROR(next.status());
  if (!next->has_value()) return absl::OkStatus();
  ReportStaleness((*next)->rows, context.metrics);
  // What it trains on is not interrupted: other rows would be ready when it goes on.
  StageContext training{context.step, context.metrics};
  SetTraining(true);
  TDOCK_RETURN_IF_ERROR(TrainOn(**next, training));
  TDOCK_RETURN_IF_ERROR(options_.serve_weights());
  SetTraining(false);
  return absl::OkStatus();
}

void Streaming::SetTraining(bool training) {
  const MutexLock lock(mu_);
  training_ = training;
  if (!training) steps_left_ = std::max<int64_t>(steps_left_ - 1, 0);
  changed_.NotifyAll();
}

// How many versions older than the newest weights those are that made the rows.
void Streaming::ReportStaleness(const Rows& rows, StepMetrics& metrics) const {
  const absl::StatusOr<PartitionStatus> status = run_.partition.dock().GetStatus(run_.partition.name());
  if (!status.ok() || status->weights_version == kNoWeightsVersion) return;
  std::vector<float> lags;
  for (size_t row = 0; row < rows.size(); ++row) {
    int64_t oldest = status->weights_version;
    for (size_t column = 0; column < rows.columns().size(); ++column) {
      const int64_t version = rows.cell(row, column).weights_version;
      if (version != kNoWeightsVersion) oldest = std::min(oldest, version);
    }
    lags.push_back(static_cast<float>(status->weights_version - oldest));
  }
  metrics.Distribution("async/staleness", lags);
}

// The first stage of a step on as many groups as it has given back, the oldest that are ready.
absl::Status Streaming::RunAgain(Stage& stage, int64_t groups, StageContext& context, int64_t& rows) {
  context.whole_step = false;
  const absl::StatusOr<int64_t> dropped = run_.runner.Run(stage, groups, context);
  if (dropped.ok()) rows -= *dropped;
  return dropped.status();
}

absl::Status Streaming::TrainOn(const Taken& taken, StageContext& context) {
  int64_t rows = std::ssize(taken.rows.ids());
  const std::string which = RowRange(taken.rows);
  for (size_t i = streamed_; i < run_.stages.size() && rows > 0; ++i) {
    const std::string& name = run_.stages[i]->consumer().name;
    context.progress = [this, &name] {
      run_.timeline.Progress(name);
      run_.watch.Progress();
    };
    run_.meter.Begin();
    run_.timeline.Work(name, rows);
    run_.context.progress.Doing(name);
    const absl::Status status = run_.watch.Run(name, which, [&] { return RunOne(i, taken, context, rows); });
    run_.timeline.End(name);
    TDOCK_RETURN_IF_ERROR(status);
    run_.meter.End(name, context.metrics);
  }
  return absl::OkStatus();
}

absl::Status Streaming::RunOne(size_t number, const Taken& taken, StageContext& context, int64_t& rows) {
  Stage& stage = *run_.stages[number];
  context.whole_step = true;
  const int64_t unit = stage.consumer().unit == Unit::kGroup ? run_.group_size : 1;
  if (number > streamed_) {
    const absl::StatusOr<int64_t> dropped = run_.runner.Run(stage, rows / unit, context);
    if (dropped.ok()) rows -= *dropped;
    return dropped.status();
  }
  const absl::StatusOr<StageRunner::Round> round = run_.runner.RunTaken(stage, taken, context);
  if (!round.ok()) {
    run_.partition.dock().Release({.partition = run_.partition.name(), .lease = taken.lease}).IgnoreError();
    return Annotate(round.status(), absl::StrCat("stage '", stage.consumer().name, "'"));
  }
  rows -= round->dropped_rows;
  return RunAgain(stage, round->requeued_units * unit / run_.group_size, context, rows);
}

absl::StatusOr<bool> Streaming::HasMore() {
  const MutexLock lock(mu_);
  if (options_.limited && steps_left_ == 0) return false;
  if (!exhausted_) {
    TDOCK_ASSIGN_OR_RETURN(const bool more, feeder_.ReadAhead());
    if (more) return true;
  }
  TDOCK_ASSIGN_OR_RETURN(const PartitionStatus status, run_.partition.dock().GetStatus(run_.partition.name()));
  return status.rows > 0;
}

absl::Status Streaming::WhileNotFeeding(const std::function<absl::Status()>& body) {
  const MutexLock lock(mu_);
  return body();
}

absl::Status Streaming::Stop() {
  {
    const MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (feeding_.joinable()) feeding_.join();
  if (threads_ == nullptr) return absl::OkStatus();
  threads_->Stop();
  const absl::Status status = threads_->Join();
  threads_.reset();
  return status;
}

std::string Streaming::Describe() const {
  std::string text = threads_ != nullptr ? threads_->Describe() : std::string();
  for (size_t i = options_.on_threads ? streamed_ : 0; i < run_.stages.size(); ++i) {
    const std::string& name = run_.stages[i]->consumer().name;
    const absl::StatusOr<std::string> why = run_.partition.dock().Explain(run_.partition.name(), name);
    absl::StrAppend(&text, name, ": ", why.ok() ? *why : std::string(why.status().message()), "\n");
  }
  return text;
}

}  // namespace tdock::trainer
