#include "trainer/loop/train.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "kernels/limits.h"
#include "model/decoder/device.h"
#include "trainer/executor/explain_socket.h"
#include "trainer/executor/run_moment.h"
#include "trainer/loop/evaluation.h"
#include "trainer/loop/fingerprint.h"
#include "trainer/loop/model_files.h"
#include "trainer/loop/phase_meter.h"
#include "trainer/loop/run_checkpoints.h"
#include "trainer/loop/run_length.h"
#include "trainer/loop/run_models.h"
#include "trainer/loop/run_partition.h"
#include "trainer/loop/run_stages.h"
#include "trainer/loop/run_start.h"
#include "trainer/loop/run_validation.h"
#include "trainer/loop/saved_run.h"
#include "trainer/loop/speed.h"
#include "trainer/loop/step_report.h"
#include "trainer/loop/stop_notice.h"
#include "trainer/run_log/trace.h"
#include "trainer/stages/guard.h"

namespace tdock::trainer {
namespace {

std::string Grouped(int64_t number) {
  std::string digits = absl::StrCat(number);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3) digits.insert(static_cast<size_t>(i), ",");
  return digits;
}

constexpr char kKernels[] = "model.kernels";
constexpr char kLosses[] = "loop/lost_logs";  // in the state
constexpr size_t kMaxLosses = 100;            // in the report

// The step that is being carried out.
struct OpenStep {
  StepMetrics metrics;
  double seconds = 0;  // that the stages have taken
};

class PreparedRun final : public TrainingRun {
 public:
  PreparedRun(Recipe& recipe, RunContext context, std::unique_ptr<RunPartition> partition, RunInputs inputs,
              reward::Reward* reward)
      : recipe_(recipe),
        config_(recipe.config()),
        context_(std::move(context)),
        inputs_(std::move(inputs)),
        workers_(static_cast<int>(config_.threads), [] { at::init_num_threads(); }),
        models_{.policy = {std::move(*inputs_.decoder)}, .others = std::move(inputs_.models)},
        partition_(std::move(partition)),
        meter_(context_.clock, context_.env, models_.policy.decoder.device()),
        timeline_(context_.clock),
        moment_(context_.clock),
        total_steps_(TotalSteps(config_, inputs_.data.train->size())),
        started_(context_.clock.Now()),
        validation_(config_.trainer, meter_, timeline_),
        report_(context_.log),
        stages_({.recipe = recipe_,
                 .context = context_,
                 .inputs = inputs_,
                 .reward = reward != nullptr ? *reward : *inputs_.reward,
                 .workers = workers_,
                 .models = models_,
                 .partition = *partition_,
                 .meter = meter_,
                 .timeline = timeline_,
                 .total_steps = total_steps_}) {}

  // Makes everything as it is when the run begins, or as it was when the checkpoint was saved. Writes no file.
  absl::Status Begin(const RunStart& start) {
    chooses_kernels_ = config_.model.kernels == kernels::kBestInstructions && models_.policy.decoder.device().is_cpu();
    if (chooses_kernels_) config_.model.kernels = kernels::Instructions();
    config::Spec spec;
    recipe_.Bind(spec);
    TDOCK_ASSIGN_OR_RETURN(fingerprint_, FingerprintOf(context_.env, spec, config_, inputs_, models_.policy.decoder,
                                                       stages_.data_order()));
    TDOCK_RETURN_IF_ERROR(AddRoles(context_.env, models_.others, fingerprint_));
    if (config_.trainer.val_only && !start.checkpoint.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("trainer.val_only validates the model that a run begins with, and this one goes on from ",
                       start.checkpoint, ": name another folder in trainer.run_dir, and the model in model.path"));
    }
    if (!start.checkpoint.empty()) return GoOnFrom(start);
    TDOCK_RETURN_IF_ERROR(stages_.Make([this](const PartitionOptions& options) { return TakeOver(options); }));
    if (config_.trainer.val_only && stages_.plan().evaluations.empty()) {
      return absl::InvalidArgumentError(
          "trainer.val_only is set, and there is no validation data: give data.val_files");
    }
    return partition_->RollBack(0, 0);
  }

  // Also makes what is in the folder as it was then.
  absl::Status OpenRunDirectory(RunStart start) {
    const std::string& path = config_.trainer.run_dir;
    if (start.is_there) {
      TDOCK_RETURN_IF_ERROR(TidyRun(context_.env, path, start));
      TDOCK_ASSIGN_OR_RETURN(run_, RunDirectory::Open(context_.env, context_.clock, path, logs_));
      lock_ = std::move(start.lock);
    } else {
      TDOCK_ASSIGN_OR_RETURN(run_, path.empty()
                                       ? RunDirectory::CreateNext(context_.env, context_.clock, "runs", config_.recipe)
                                       : RunDirectory::Create(context_.env, context_.clock, path));
      TDOCK_ASSIGN_OR_RETURN(lock_, LockRun(run_->path()));
    }
    config_.trainer.run_dir = run_->path();
    NoteLosses();
    checkpoints_.emplace(context_.env, context_.clock, run_->path(), start.manifest.place,
                         RunCheckpoints::Options{.freq = *ParseSaveFreq(config_.trainer.save_freq),
                                                 .most_kept = config_.trainer.max_checkpoints_to_keep,
                                                 .best_metric = config_.trainer.best_metric,
                                                 .best_is_least = config_.trainer.best_is_least},
                         context_.log);
    checkpoints_->on_written = [this](const CheckpointPlace& place) { return partition_->Commit(place.step); };
    if (!start.checkpoint.empty()) {
      context_.log(absl::StrCat("going on from ", start.checkpoint, ", after ", ToText(start.manifest.place),
                                start.manifest.has_checksum
                                    ? ""
                                    : "; an older version wrote its manifest.json, which has no checksum of its own"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<RunResult> Train() override {
    ReportHead head{.title = absl::StrCat(absl::AsciiStrToUpper(config_.recipe), ": ", run_->path()),
                    .facts = {{"seed", absl::StrCat(config_.seed)},
                              {"parameters", Grouped(models_.policy.decoder.parameter_count())},
                              {"device", absl::StrCat(config_.device, ", ", workers_.threads(), " threads")}},
                    .problem = "",
                    .earlier = earlier_};
    result_.run_dir = run_->path();
    absl::Status status;
    {
      const StopNotice notice(context_, [this] { return WouldBeLost(); });
      explainer_ = StartExplainer();
      status = Guarded([&] { return TrainAndSave(); });
      stages_.Stop().IgnoreError();  // whose errors RunSteps() has returned
      if (absl::IsCancelled(status) && !context_.CheckStop().ok()) {
        status = Guarded([&] { return SaveStopped(); });
        unsaved_ = unsaved_ || !absl::IsCancelled(status);
      }
      if (unsaved_ && !status.ok() && !absl::IsCancelled(status)) status = Rescued(status);
      checkpoints_->Finish();
      explainer_.reset();
    }
    partition_->Close();
    head.problem = std::string(status.message());
    NoteLosses();
    for (const std::string& loss : losses_) head.facts.emplace_back("lost", loss);
    const absl::Status reported = Guarded([&] { return run_->WriteReport(head); });
    TDOCK_RETURN_IF_ERROR(status);
    // The trained weights are saved.
    if (!reported.ok()) context_.log(absl::StrCat("warning: the report was not written: ", reported.message()));
    result_.first = validation_.first();
    result_.last = validation_.last();
    report_.End();
    return result_;
  }

 private:
  absl::Status TakeOver(const PartitionOptions& options) {
    return partition_->TakeOver(options, config_.trainer.run_dir);
  }

  absl::Status GoOnFrom(const RunStart& start) {
    TDOCK_ASSIGN_OR_RETURN(SavedRun saved, SavedRun::Read(context_.env, start));
    TDOCK_RETURN_IF_ERROR(KeepKernels(saved.kernels()));
    TDOCK_RETURN_IF_ERROR(saved.Compare(fingerprint_, context_.allow_changed, partition_->shared()));
    TDOCK_ASSIGN_OR_RETURN(const int64_t ahead, RunStages::AheadIn(saved.state()));
    if (ahead > 0 && !Streams(config_)) {
      return absl::FailedPreconditionError(
          absl::StrCat(saved.folder(), " has ", ahead, " samples that were answered ahead of the step that trains on ",
                       "them: go on with async_training.steps_ahead or rollout.partial_rollout_max_split as it was"));
    }
    // After a whole step there are no rows but those that were answered ahead, and without them other options may be
    // right.
    const bool between_steps = saved.part() == 0 && ahead == 0;
    const bool makes_anew = partition_->shared() || (between_steps && (saved.changed() || !saved.HasRows()));
    TDOCK_RETURN_IF_ERROR(stages_.Make([&](const PartitionOptions& options) {
      return makes_anew ? TakeOver(options) : saved.ImportRows(options, *partition_);
    }));
    if (context_.remote != nullptr) context_.remote->GoOnFrom(saved.folder());
    return Annotate(Restore(saved), saved.folder());
  }

  // A run of one process goes on with the instructions that it began with, unless others are asked for. All ranks of a
  // run have agreed on theirs before.
  absl::Status KeepKernels(const std::string& saved) {
    const bool may_change = absl::c_linear_search(context_.allow_changed, kKernels);
    if (!chooses_kernels_ || saved.empty() || may_change || context_.run_dock != nullptr) return absl::OkStatus();
    if (absl::Status status = model::UseInstructions(saved); !status.ok()) {
      return absl::FailedPreconditionError(absl::StrCat("the run began with ", kKernels, "=", saved, ", and ",
                                                        status.message(), ". To go on with others: --allow-changed ",
                                                        kKernels));
    }
    fingerprint_[kKernels] = config_.model.kernels = saved;
    return absl::OkStatus();
  }

  absl::Status Restore(const SavedRun& saved) {
    const State& state = saved.state();
    TDOCK_RETURN_IF_ERROR(LoadPolicy(context_.env, saved.folder(), state, models_.policy.decoder));
    TDOCK_RETURN_IF_ERROR(stages_.Load(state));
    if (stages_.has_begun_data_anew()) {  // as allowed
      context_.log("the data has changed: the run goes on with its beginning");
    }
    TDOCK_RETURN_IF_ERROR(state.Get("validation", validation_));
    TDOCK_RETURN_IF_ERROR(state.Get("report", report_));
    TDOCK_ASSIGN_OR_RETURN(result_.steps, state.Integer("loop/steps"));
    differs_ = saved.differs();
    // What differs may have more steps to do.
    if (!differs_) {
      TDOCK_ASSIGN_OR_RETURN(result_.ended, state.Text("loop/ended"));
    }
    TDOCK_ASSIGN_OR_RETURN(const double seconds, state.Number("loop/seconds"));
    earlier_ = absl::Seconds(seconds);
    begun_ = true;
    parts_ = saved.part();
    if (parts_ > 0) {
      open_ = std::make_unique<OpenStep>();
      TDOCK_ASSIGN_OR_RETURN(open_->seconds, state.Number("step/seconds"));
      TDOCK_RETURN_IF_ERROR(state.Get("step/metrics", open_->metrics));
    }
    TDOCK_ASSIGN_OR_RETURN(logs_, saved.Logs());
    if (const auto lost = state.texts().find(kLosses); lost != state.texts().end()) {
      losses_ = absl::StrSplit(lost->second, '\n', absl::SkipEmpty());
    }
    return partition_->shared() ? partition_->RollBack(result_.steps, models_.policy.version) : absl::OkStatus();
  }

  // Everything to go on from, in memory that it shares with the run.
  State CollectState() const {
    State state;
    state.SetInteger("loop/steps", result_.steps);
    state.SetText("loop/ended", result_.ended);
    state.SetNumber("loop/seconds", absl::ToDoubleSeconds(earlier_ + (context_.clock.Now() - started_)));
    if (!losses_.empty()) state.SetText(kLosses, absl::StrJoin(losses_, "\n"));
    stages_.Save(state);
    state.Set("validation", validation_);
    state.Set("report", report_);
    if (open_ != nullptr) {
      state.SetNumber("step/seconds", open_->seconds);
      state.Set("step/metrics", open_->metrics);
    }
    return state;
  }

  absl::Status TrainAndSave() {
    config::Spec spec;
    recipe_.Bind(spec);
    TDOCK_RETURN_IF_ERROR(Annotate(run_->WriteConfig(config::Dump(spec)), "writing the configuration"));
    TDOCK_RETURN_IF_ERROR(partition_->Announce(run_->path(), stages_.plan().stages));
    if (differs_) TDOCK_RETURN_IF_ERROR(SaveBeginning());
    TDOCK_RETURN_IF_ERROR(Annotate(RunSteps(), config_.recipe));
    if (config_.trainer.val_only) return Annotate(run_->Sync(), "writing the logs");
    return Annotate(Guarded([&] { return SaveAtEnd(); }), "saving the checkpoint");
  }

  absl::Status RunSteps() {
    stages_.Begin(result_.steps);
    context_.progress.Begin(config_.recipe, total_steps_, result_.steps);
    const model::Decoder& decoder = models_.policy.decoder;
    peak_flops_ = config_.trainer.peak_flops > 0
                      ? config_.trainer.peak_flops
                      : MeasurePeakFlops(workers_, decoder.compute_type(), decoder.device(), context_.clock);
    // A batch ahead, so that the last step is known as such.
    if (open_ == nullptr && result_.ended.empty()) {
      TDOCK_RETURN_IF_ERROR(Annotate(NextBatch(result_.steps), "reading the training data"));
      if (begun_ && !more_) result_.ended = EndingAfter(config_, result_.steps);
    }
    for (int64_t step = begun_ ? result_.steps + 1 : 0; result_.ended.empty(); ++step) {
      TDOCK_RETURN_IF_ERROR(Annotate(context_.CheckStop(), absl::StrCat("before step ", step)));
      const absl::Status status = Guarded([&] { return OneStep(step); });
      TDOCK_RETURN_IF_ERROR(Annotate(status, absl::StrCat("step ", step)));
      TDOCK_RETURN_IF_ERROR(Annotate(Guarded([&] { return SaveIfDue(); }), absl::StrCat("after step ", step)));
    }
    TDOCK_RETURN_IF_ERROR(stages_.Stop());
    context_.progress.End(result_.ended);
    return absl::OkStatus();
  }

  // Step 0 trains nothing: it is the validation before the first.
  absl::Status OneStep(int64_t step) {
    step_ = step;
    if (open_ == nullptr) TDOCK_RETURN_IF_ERROR(OpenNext(step));
    absl::Status read;
    if (step > 0) {
      Enter(step, "carrying out its stages");
      const absl::Time begun = context_.clock.Now();
      const absl::Status run = stages_.RunStep(step, open_->metrics);
      if (run.ok()) model::AwaitDevice(models_.policy.decoder.device());  // what it started counts, too
      open_->seconds += absl::ToDoubleSeconds(context_.clock.Now() - begun);
      TDOCK_RETURN_IF_ERROR(run);
      read = NextBatch(step);
    }
    if (read.ok() && !more_) result_.ended = EndingAfter(config_, step);
    if (config_.trainer.val_only) result_.ended = "trainer.val_only";
    // This step is done, whatever the next one needs.
    if (const absl::Status concluded = Conclude(step, open_->metrics); !concluded.ok()) {
      result_.ended.clear();  // not yet, for who goes on
      return concluded;
    }
    open_.reset();
    stages_.CloseStep();
    parts_ = 0;
    result_.steps = step;
    begun_ = true;
    return Annotate(read, "reading the training data of the next step");
  }

  // Reads the batch of the step after this one, and notes whether there is one.
  absl::Status NextBatch(int64_t step) {
    Enter(step, "reading the training data of the next");
    const int64_t most = config_.trainer.total_training_steps;
    more_ = false;
    if (most > 0 && step >= most) return absl::OkStatus();
    TDOCK_ASSIGN_OR_RETURN(more_, stages_.HasMore());
    return absl::OkStatus();
  }

  // Feeds its samples, if it has any.
  absl::Status OpenNext(int64_t step) {
    // No copies are needed: it is used only while nothing has been trained in the step.
    if (partition_->shared() && step > 0) before_step_ = CollectState();
    auto opened = std::make_unique<OpenStep>();
    opened->metrics.Mean("training/global_step", static_cast<double>(step));
    const double saving = absl::ToDoubleSeconds(std::exchange(saving_, absl::ZeroDuration()));
    if (saving > 0) opened->metrics.Mean("timing_s/save_checkpoint", saving);
    TDOCK_RETURN_IF_ERROR(stages_.OpenStep(step, opened->metrics));
    open_ = std::move(opened);
    return absl::OkStatus();
  }

  // Validates where that is due, ends the run if its rule is met, and reports the step.
  absl::Status Conclude(int64_t step, StepMetrics& gathered) {
    validated_.clear();
    if (!stages_.plan().evaluations.empty() && (validation_.IsDueAfter(step) || !result_.ended.empty())) {
      if (stages_.CanBeSaved()) TDOCK_RETURN_IF_ERROR(context_.CheckStop());
      TDOCK_RETURN_IF_ERROR(Annotate(Validate(step, gathered), "validating"));
    }
    if (step > 0) gathered.Mean("timing_s/step", open_->seconds);
    TDOCK_RETURN_IF_ERROR(LogTimeline(step, gathered));
    Metrics metrics = gathered.Values();
    AddSpeed(peak_flops_, metrics);
    moment_.NoteStep(metrics);
    context_.progress.Update(step, report_.Take(stages_.plan().shown, step, metrics));
    return Logged(run_->LogMetrics(config_.recipe, step, metrics));
  }

  // Handles the failure of a log: in the last step, the model is worth more than the logs.
  absl::Status Logged(const absl::Status& status) {
    NoteLosses();
    if (status.ok()) return status;
    unsaved_ = true;
    if (result_.ended.empty()) return status;
    context_.log(absl::StrCat("warning: the log of the last step is not whole: ", status.message()));
    return absl::OkStatus();
  }

  // Tells what was removed or cut in the run's folder, and puts back what others look for in it.
  void NoteLosses() {
    for (const std::string& loss : run_->TakeLosses()) {
      context_.log(absl::StrCat("warning: ", loss));
      if (losses_.size() < kMaxLosses) losses_.push_back(loss);
    }
    if (!run_->TakeRemade()) return;
    lock_.reset();
    absl::StatusOr<std::unique_ptr<FileLock>> lock = LockRun(run_->path());
    absl::Status remade = lock.status();
    if (lock.ok()) lock_ = *std::move(lock);
    remade.Update(partition_->Announce(run_->path(), stages_.plan().stages));
    if (explainer_ != nullptr) {
      explainer_.reset();  // its socket was in the folder
      explainer_ = StartExplainer();
    }
    if (!remade.ok()) context_.log(absl::StrCat("warning: ", remade.message()));
  }

  absl::Status Validate(int64_t step, StepMetrics& gathered) {
    Enter(step, "validating");
    TDOCK_RETURN_IF_ERROR(PrepareWeights());
    TDOCK_ASSIGN_OR_RETURN(const std::vector<Answer> answers,
                           validation_.Run(step, stages_.plan().evaluations, gathered));
    validated_ = validation_.last();
    if (validation_.MeetsStopRule()) result_.ended = config_.trainer.stop_when;
    return Logged(run_->LogSamples(config_.recipe, step, answers));
  }

  // Answers `tdock explain` while it lives; null, with a warning, where the folder cannot have a socket.
  std::unique_ptr<RunExplainer> StartExplainer() {
    auto explain = [this, stages = stages_.Explained(), recipe = config_.recipe, shared = partition_->shared(),
                    &dock = partition_->dock()](ExplainForm form) {
      RunExplanation run = ExplainRun(moment_, timeline_, dock, stages, context_.clock);
      run.recipe = recipe;
      run.steps = total_steps_;
      run.shared = shared;
      return form == ExplainForm::kJson ? ToJson(run) : ToText(run);
    };
    absl::StatusOr<std::unique_ptr<RunExplainer>> explainer = RunExplainer::Start(run_->path(), std::move(explain));
    if (explainer.ok()) return *std::move(explainer);
    context_.log(absl::StrCat("warning: tdock explain cannot ask this run: ", explainer.status().message()));
    return nullptr;
  }

  // What the stages did since the last step, and how long each was idle.
  absl::Status LogTimeline(int64_t step, StepMetrics& metrics) {
    const Timeline::Taken taken = timeline_.Take();
    for (const auto& stage : stages_.plan().stages) {
      const std::string& name = stage->consumer().name;
      const auto found = taken.times.find(name);
      if (found == taken.times.end() || found->second.waiting == 0) continue;  // it has no thread of its own
      const auto& [working, waiting] = found->second;
      metrics.Mean("perf/waited_s/" + name, waiting);
      metrics.Mean("perf/idle_share/" + name, waiting / (waiting + working));
      metrics.Mean("timing_s/" + name, working);
    }
    const auto seconds = [this](absl::Time time) { return absl::ToDoubleSeconds(earlier_ + (time - started_)); };
    std::vector<TimelineSpan> spans;
    for (const StageSpan& span : taken.spans) {
      spans.push_back({span.stage, span.works, seconds(span.begin), seconds(span.end), span.rows});
    }
    TDOCK_RETURN_IF_ERROR(Logged(run_->LogTimeline(config_.recipe, step, spans)));
    return Logged(Profile(step, taken, metrics));
  }

  // What the other processes did, too; and the trace of the step, where that is asked for.
  absl::Status Profile(int64_t step, const Timeline::Taken& taken, StepMetrics& metrics) {
    std::vector<TraceSpan> trace;
    for (const StageSpan& span : taken.spans) {
      if (!span.works) continue;
      trace.push_back({.lane = span.stage,
                       .name = span.stage,
                       .began_ns = absl::ToUnixNanos(span.begin),
                       .ended_ns = absl::ToUnixNanos(span.end),
                       .rows = span.rows});
    }
    if (context_.remote != nullptr) {
      for (const RankSpan& span : context_.remote->TakeSpans()) {
        metrics.Max(absl::StrCat("perf/cpu_memory_used_gb/rank_", span.rank, "/", span.method),
                    static_cast<double>(span.memory_after) / (1 << 30));
        trace.push_back({span.rank, span.method, span.method, span.began_ns, span.ended_ns, span.rows,
                         span.memory_before, span.memory_after});
      }
    }
    const std::vector<std::string>& steps = config_.trainer.profile_steps;
    if (std::find(steps.begin(), steps.end(), absl::StrCat(step)) == steps.end()) return absl::OkStatus();
    const std::string folder = JoinPath(run_->path(), "profile");
    TDOCK_RETURN_IF_ERROR(context_.env.CreateFolders(folder));
    return WriteFileAtomically(context_.env, JoinPath(folder, absl::StrCat("step_", step, ".json")), ToTrace(trace));
  }

  void Enter(int64_t step, const std::string& phase) {
    moment_.Enter(step, phase);
    context_.progress.Doing(phase);
  }

  // For what reads them in this process.
  absl::Status PrepareWeights() {
    return context_.remote == nullptr ? absl::OkStatus() : context_.remote->PrepareWeights();
  }

  // What the checkpoint of this moment, with `state`, the logs and the dock as they are, holds.
  absl::StatusOr<CheckpointContents> Contents(const CheckpointPlace& place, State state,
                                              std::shared_ptr<const model::Decoder> policy) {
    const absl::StatusOr<LogPosition> logs = run_->Position();
    NoteLosses();
    TDOCK_RETURN_IF_ERROR(logs.status());
    RemoteStages::WriteParts write_parts = nullptr;
    if (context_.remote != nullptr) {
      TDOCK_ASSIGN_OR_RETURN(write_parts, context_.remote->SnapshotParts(place.step, place.part));
    }
    return ContentsOf({.env = context_.env,
                       .state = std::move(state),
                       .write_parts = std::move(write_parts),
                       .fingerprint = fingerprint_,
                       .logs = *logs,
                       .policy = std::move(policy),
                       .splits_policy = stages_.SplitsPolicy(),
                       .tokenizer = *inputs_.tokenizer,
                       .model = config_.model,
                       .partition = *partition_,
                       .rounds = stages_.rounds()});
  }
  // The run's own, which must not change meanwhile.
  std::shared_ptr<const model::Decoder> OwnDecoder() const {
    return {std::shared_ptr<void>(), &models_.policy.decoder};
  }

  // Of this moment, between two stages that train.
  absl::StatusOr<CheckpointContents> ContentsNow(const CheckpointPlace& place, bool copies) {
    absl::StatusOr<CheckpointContents> contents = absl::InternalError("nothing was collected");
    TDOCK_RETURN_IF_ERROR(stages_.WhileNotFeeding([&] {
      State state = copies ? CollectState().Snapshot() : CollectState();
      const bool copies_policy = copies && !stages_.SplitsPolicy();
      contents = Contents(
          place, std::move(state),
          copies_policy ? std::make_shared<const model::Decoder>(models_.policy.decoder.Snapshot()) : OwnDecoder());
      return contents.status();
    }));
    return contents;
  }

  // What the run goes on from, with what has changed, or in the folder of a branch.
  absl::Status SaveBeginning() {
    const CheckpointPlace place{result_.steps, parts_};
    checkpoints_->Finish();  // other ranks have the state of one moment only
    TDOCK_ASSIGN_OR_RETURN(CheckpointContents contents, ContentsNow(place, /*copies=*/false));
    return checkpoints_->WriteNow(place, {}, std::move(contents), /*again=*/true);
  }

  absl::Status SaveIfDue() {
    const absl::Time begun = context_.clock.Now();
    checkpoints_->Collect();
    if (!result_.ended.empty()) return absl::OkStatus();  // it is saved when the run ends
    TDOCK_ASSIGN_OR_RETURN(bool due, checkpoints_->IsDue(result_.steps, validated_));
    if (context_.save != nullptr && context_.save->exchange(false)) {
      checkpoints_->Finish();
      due = true;
    }
    if (partition_->outlives_run() && ParseSaveFreq(config_.trainer.save_freq)->never()) {
      TDOCK_RETURN_IF_ERROR(partition_->Commit(result_.steps));
    }
    if (!due) return absl::OkStatus();
    Enter(result_.steps, "saving a checkpoint");
    const CheckpointPlace place{result_.steps, 0};
    absl::StatusOr<CheckpointContents> contents = Guarded([&] { return ContentsNow(place, /*copies=*/true); });
    if (contents.ok()) {
      checkpoints_->Write(place, validated_, *std::move(contents));
    } else {
      checkpoints_->NoteFailure(place, Annotate(contents.status(), absl::StrCat("saving ", ToText(place))));
    }
    saving_ += context_.clock.Now() - begun;
    return absl::OkStatus();
  }

  absl::Status SaveAtEnd() {
    Enter(result_.steps, "saving the model");
    checkpoints_->Finish();  // other ranks have the state of one moment only
    if (!ParseSaveFreq(config_.trainer.save_freq)->never()) {
      const absl::Status saved = Guarded([&]() -> absl::Status {
        const CheckpointPlace place{result_.steps, 0};
        TDOCK_ASSIGN_OR_RETURN(CheckpointContents contents, ContentsNow(place, /*copies=*/false));
        return checkpoints_->WriteNow(place, validated_, std::move(contents));
      });
      // The model is what counts now.
      if (!saved.ok()) context_.log(absl::StrCat("warning: ", saved.message()));
    }
    TDOCK_RETURN_IF_ERROR(PrepareWeights());
    const absl::Status saved = SaveModel(run_->checkpoint_path());
    if (!saved.ok()) {
      if (!SaveElsewhere()) {
        return absl::Status(saved.code(), absl::StrCat(saved.message(), ". ", WouldBeLost()));
      }
      context_.log(absl::StrCat("warning: the model is in ", result_.checkpoint,
                                ", which is not in the folder of the run, ",
                                "because it could not be written there: ", saved.message()));
    }
    // The model is there, whatever comes of that.
    if (const absl::Status evaluated = Guarded([&] { return EvaluateSaved(); }); !evaluated.ok()) {
      context_.log(absl::StrCat("warning: evaluating ", result_.checkpoint, ": ", evaluated.message()));
    }
    if (const absl::Status synced = run_->Sync(); !synced.ok()) {
      context_.log(absl::StrCat("warning: the logs are not whole: ", synced.message()));
    }
    return absl::OkStatus();
  }

  absl::Status SaveModel(const std::string& folder) {
    std::function<absl::Status()> swap_average;
    if (stages_.averages()) swap_average = [this] { return stages_.SwapAverage(); };
    TDOCK_RETURN_IF_ERROR(Guarded(
        [&] { return models_.SaveForUse(context_.env, folder, *inputs_.tokenizer, config_.model, swap_average); }));
    result_.checkpoint = folder;
    return absl::OkStatus();
  }

  // False, with nothing left, if nothing can be written beside the folder of the run nor in the working folder.
  bool SaveElsewhere() {
    if (std::exchange(sought_, true)) return false;
    for (const std::string& folder : RescueFolders(context_.env, run_->path())) {
      const absl::Status saved = SaveModel(folder);
      if (saved.ok()) return true;
      context_.log(absl::StrCat("warning: the model could not be saved in ", folder, ": ", saved.message()));
      models_.RemoveSaved(context_.env, folder);
    }
    return false;
  }

  // The error of a run that ends because its logs cannot be written, after it has saved what it has trained.
  absl::Status Rescued(const absl::Status& why) {
    if (step_ == 0 || !Guarded([&] { return PrepareWeights(); }).ok() || !SaveElsewhere()) return why;
    return absl::Status(why.code(), absl::StrCat(why.message(), ". The weights of step ", step_.load(), " are in ",
                                                 result_.checkpoint));
  }

  // What the evaluations say before and after training, and of the folder that is left for use.
  absl::Status EvaluateSaved() {
    if (validation_.last().empty()) return absl::OkStatus();
    TDOCK_ASSIGN_OR_RETURN(result_.saved,
                           EvaluateFolder(context_.env, result_.checkpoint, config_.model, stages_.plan().evaluations,
                                          validation_.last(), models_.policy));
    nlohmann::ordered_json figures;
    figures["before"] = validation_.first();
    figures["after"] = validation_.last();
    figures["saved"] = result_.saved;
    return WriteFileAtomically(context_.env, JoinPath(run_->path(), "evaluation.json"), JsonText(figures, 2) + "\n");
  }

  // Saves a run that was told to stop where it is, and says how to go on: Cancelled, if all went well.
  absl::Status SaveStopped() {
    const std::string why(context_.CheckStop().message());
    if (!begun_) return absl::CancelledError(absl::StrCat(why, " before the first step"));
    CheckpointPlace place{result_.steps, 0};
    if (!stages_.CanBeSaved()) {
      return absl::CancelledError(absl::StrCat(why, " in step ", place.step + 1, ". ", WouldBeLost()));
    }
    const bool inside = open_ != nullptr && !partition_->shared();
    if (inside) place.part = parts_ + 1;
    checkpoints_->Finish();  // other ranks have the state of one moment only
    State state = open_ != nullptr && !inside ? *std::exchange(before_step_, std::nullopt) : CollectState();
    TDOCK_ASSIGN_OR_RETURN(CheckpointContents contents, Contents(place, std::move(state), OwnDecoder()));
    const absl::Status saved =
        checkpoints_->WriteNow(place, open_ != nullptr ? Metrics() : validated_, std::move(contents));
    if (!saved.ok()) return Annotate(saved, absl::StrCat(why, "; ", WouldBeLost()));
    return absl::CancelledError(absl::StrCat(why, " after ", ToText(place), ", and saved in ",
                                             checkpoints_->PathOf(place), ". To go on: tdock train ",
                                             JoinPath(run_->path(), "config.yaml")));
  }

  // If the run was killed now. Thread-safe.
  std::string WouldBeLost() const {
    const std::optional<CheckpointPlace> newest = checkpoints_->Newest();
    if (!newest) return "There is no checkpoint yet: all steps would be lost";
    return absl::StrCat("The last checkpoint is ", checkpoints_->PathOf(*newest), ": all after ", ToText(*newest),
                        " would be lost, up to step ", step_.load());
  }

  Recipe& recipe_;
  RunConfig& config_;
  const RunContext context_;
  RunInputs inputs_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<RunExplainer> explainer_;  // while it trains
  std::unique_ptr<RunDirectory> run_;
  Workers workers_;
  RunModels models_;
  const std::unique_ptr<RunPartition> partition_;
  PhaseMeter meter_;
  Timeline timeline_;
  RunMoment moment_;
  double peak_flops_ = 0;  // per second; 0: unknown
  const int64_t total_steps_;
  Fingerprint fingerprint_;
  const absl::Time started_;

  // Of the checkpoint that the run goes on from.
  bool chooses_kernels_ = false;  // model.kernels is automatic
  bool differs_ = false;          // whether it is of another run, or anything has changed since
  LogPosition logs_;              // where the logs were
  absl::Duration earlier_;        // that the run had taken

  bool begun_ = false;  // whether step 0 is done
  std::atomic<int64_t> step_ = 0;
  RunResult result_;
  Metrics validated_;                // of the last step
  std::vector<std::string> losses_;  // of the folder, see RunDirectory::TakeLosses()
  bool unsaved_ = false;             // a log, or the state of a run that is told to stop, could not be written
  bool sought_ = false;              // SaveElsewhere() has tried all places
  bool more_ = false;                // whether there is a next step
  std::unique_ptr<OpenStep> open_;
  int64_t parts_ = 0;                 // how often the run was stopped in this step
  std::optional<State> before_step_;  // see RunStages::CanBeSaved()
  absl::Duration saving_;             // that the steps have waited for since the last one
  std::optional<RunCheckpoints> checkpoints_;
  RunValidation validation_;
  StepReport report_;
  RunStages stages_;  // last: its threads use what is above
};

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingRun>> PrepareRun(Recipe& recipe, RunInputs inputs, RunContext context,
                                                        reward::Reward* reward) {
  return Guarded([&]() -> absl::StatusOr<std::unique_ptr<TrainingRun>> {
    RunConfig& config = recipe.config();
    if (config.trainer.max_minutes > 0) {
      context.stop_at = context.clock.Now() + absl::Minutes(config.trainer.max_minutes);
    }
    const TrainerSection asked = config.trainer;
    config.trainer.resume_mode = "auto";  // of who goes on with the config.yaml of this run
    config.trainer.resume_from_path = "";
    config::Spec spec;
    recipe.Bind(spec);
    TDOCK_ASSIGN_OR_RETURN(RunStart start, FindStart(context.env, asked, config::Dump(spec)));
    TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<RunPartition> partition, RunPartition::Open(config.trainer.dock, context));
    auto prepared =
        std::make_unique<PreparedRun>(recipe, std::move(context), std::move(partition), std::move(inputs), reward);
    TDOCK_RETURN_IF_ERROR(Annotate(prepared->Begin(start), config.recipe));
    TDOCK_RETURN_IF_ERROR(prepared->OpenRunDirectory(std::move(start)));
    return prepared;
  });
}

absl::StatusOr<std::unique_ptr<TrainingRun>> PrepareRun(Recipe& recipe, RunContext context, reward::Reward* reward) {
  TDOCK_ASSIGN_OR_RETURN(RunInputs inputs, LoadRunInputs(recipe, context.env, context.log));
  return PrepareRun(recipe, std::move(inputs), std::move(context), reward);
}

}  // namespace tdock::trainer
