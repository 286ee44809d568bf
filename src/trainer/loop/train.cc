#include "trainer/loop/train.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "nlohmann/json.hpp"
#include "trainer/checkpoint/state_files.h"
#include "trainer/executor/explain_socket.h"
#include "trainer/executor/run_moment.h"
#include "trainer/loop/executors.h"
#include "trainer/loop/feed.h"
#include "trainer/loop/feeder.h"
#include "trainer/loop/fingerprint.h"
#include "trainer/loop/gather.h"
#include "trainer/loop/model_files.h"
#include "trainer/loop/phase_meter.h"
#include "trainer/loop/run_checkpoints.h"
#include "trainer/loop/run_length.h"
#include "trainer/loop/run_partition.h"
#include "trainer/loop/run_start.h"
#include "trainer/loop/speed.h"
#include "trainer/loop/stop_notice.h"
#include "trainer/loop/stop_rule.h"
#include "trainer/loop/streaming.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/guard.h"
#include "trainer/stages/weight_average.h"

namespace tdock::trainer {
namespace {

std::string Grouped(int64_t number) {
  std::string digits = absl::StrCat(number);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3) digits.insert(static_cast<size_t>(i), ",");
  return digits;
}

// The step that is being carried out.
struct OpenStep {
  StepMetrics metrics;
  size_t stage = 0;    // the first of those that it has not had, or had a part of
  double seconds = 0;  // that the stages have taken
};

constexpr char kAhead[] = "loop/ahead";
constexpr char kPartition[] = "partition.bin", kSampling[] = "partition-sampling.bin";
constexpr absl::string_view kFirst = "validation/first/", kLast = "validation/last/", kLogs = "logs/",
                            kFingerprint = "fingerprint/";

void SetNumbers(State& state, absl::string_view prefix, const Metrics& numbers) {
  for (const auto& [name, value] : numbers) state.SetNumber(absl::StrCat(prefix, name), value);
}

absl::StatusOr<Metrics> NumbersUnder(const State& state, absl::string_view prefix) {
  Metrics numbers;
  for (const auto& [name, text] : state.texts()) {
    if (!absl::StartsWith(name, prefix)) continue;
    TDOCK_ASSIGN_OR_RETURN(numbers[name.substr(prefix.size())], state.Number(name));
  }
  return numbers;
}

std::vector<std::string> NamesOf(const Metrics& metrics) {
  std::vector<std::string> names;
  for (const auto& [name, value] : metrics) names.push_back(name);
  return names;
}

Fingerprint FingerprintIn(const State& state) {
  Fingerprint fingerprint;
  for (const auto& [name, text] : state.texts()) {
    if (absl::StartsWith(name, kFingerprint)) fingerprint[name.substr(kFingerprint.size())] = text;
  }
  return fingerprint;
}

class PreparedRun final : public TrainingRun {
 public:
  PreparedRun(Recipe& recipe, RunContext context, std::unique_ptr<RunPartition> partition, RunInputs inputs,
              reward::Reward* reward)
      : recipe_(recipe),
        config_(recipe.config()),
        context_(std::move(context)),
        inputs_(std::move(inputs)),
        reward_(reward != nullptr ? *reward : *inputs_.reward),
        stop_rule_(*ParseStopRule(config_.trainer.stop_when)),
        workers_(static_cast<int>(config_.threads), [] { at::init_num_threads(); }),
        policy_{std::move(*inputs_.decoder)},
        models_(std::move(inputs_.models)),
        partition_(std::move(partition)),
        runner_(partition_->dock(), partition_->name()),
        feeder_(*inputs_.data.train, LoaderOptionsFor(config_, context_)),
        meter_(context_.clock, context_.env, policy_.decoder.device()),
        timeline_(context_.clock),
        moment_(context_.clock),
        total_steps_(TotalSteps(config_, inputs_.data.train->size())),
        started_(context_.clock.Now()) {}

  // Makes everything as it is when the run begins, or as it was when the checkpoint was saved. Writes no file.
  absl::Status Begin(const RunStart& start) {
    config::Spec spec;
    recipe_.Bind(spec);
    TDOCK_ASSIGN_OR_RETURN(fingerprint_,
                           FingerprintOf(context_.env, spec, config_, inputs_, policy_.decoder, feeder_.order()));
    TDOCK_RETURN_IF_ERROR(AddRoles(context_.env, models_, fingerprint_));
    const auto take_over = [this](PartitionOptions options) {
      return partition_->TakeOver(std::move(options), config_.trainer.run_dir);
    };
    if (start.checkpoint.empty()) {
      TDOCK_RETURN_IF_ERROR(MakePlan(take_over));
      return partition_->RollBack(0, 0);
    }
    TDOCK_ASSIGN_OR_RETURN(const State state, ReadState(context_.env, start.checkpoint));
    TDOCK_RETURN_IF_ERROR(CheckChanges(FingerprintIn(state), start));
    // After a whole step there are no rows but those that were answered ahead, and without them other options may be
    // right.
    const std::string rows = JoinPath(start.checkpoint, kPartition);
    const int64_t ahead = state.texts().contains(kAhead) ? *state.Integer(kAhead) : 0;
    if (ahead > 0 && !Streams()) {
      return absl::FailedPreconditionError(absl::StrCat(
          start.checkpoint, " has ", ahead, " samples that were answered ahead of the step that trains on ",
          "them: go on with async_training.steps_ahead or rollout.partial_rollout_max_split as it was"));
    }
    const bool between_steps = start.manifest.place.part == 0 && ahead == 0;
    if (partition_->shared() || (between_steps && (changed_ || !context_.env.Exists(rows)))) {
      TDOCK_RETURN_IF_ERROR(MakePlan(take_over));
    } else {
      TDOCK_RETURN_IF_ERROR(MakePlan([&](const PartitionOptions& options) -> absl::Status {
        const std::string file = options.name.empty() ? rows : JoinPath(start.checkpoint, kSampling);
        TDOCK_ASSIGN_OR_RETURN(const std::string image, context_.env.ReadFile(file));
        return partition_->Import(image);
      }));
    }
    return Annotate(Restore(state, start), start.checkpoint);
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
    checkpoints_.emplace(context_.env, context_.clock, run_->path(), start.manifest.place,
                         RunCheckpoints::Options{.freq = *ParseSaveFreq(config_.trainer.save_freq),
                                                 .most_kept = config_.trainer.max_checkpoints_to_keep,
                                                 .best_metric = config_.trainer.best_metric,
                                                 .best_is_least = config_.trainer.best_is_least},
                         context_.log);
    checkpoints_->on_written = [this](const CheckpointPlace& place) { return partition_->Commit(place.step); };
    if (!start.checkpoint.empty()) {
      context_.log(absl::StrCat("going on from ", start.checkpoint, ", after ", ToText(start.manifest.place)));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<RunResult> Train() override {
    ReportHead head{.title = absl::StrCat(absl::AsciiStrToUpper(config_.recipe), ": ", run_->path()),
                    .facts = {{"seed", absl::StrCat(config_.seed)},
                              {"parameters", Grouped(policy_.decoder.parameter_count())},
                              {"device", absl::StrCat(config_.device, ", ", workers_.threads(), " threads")}},
                    .problem = "",
                    .earlier = earlier_};
    result_.run_dir = run_->path();
    absl::Status status;
    {
      const StopNotice notice(context_, [this] { return WouldBeLost(); });
      const std::unique_ptr<RunExplainer> explainer = StartExplainer();
      status = Guarded([&] { return TrainAndSave(); });
      if (streaming_.has_value()) streaming_->Stop().IgnoreError();  // whose errors RunSteps() has returned
      if (absl::IsCancelled(status) && !context_.CheckStop().ok()) status = Guarded([&] { return SaveStopped(); });
      checkpoints_->Finish();
    }
    partition_->Close();
    head.problem = std::string(status.message());
    const absl::Status reported = Guarded([&] { return run_->WriteReport(head); });
    TDOCK_RETURN_IF_ERROR(status);
    TDOCK_RETURN_IF_ERROR(reported);
    return result_;
  }

 private:
  // Of what the run is made of, since `saved`.
  absl::Status CheckChanges(const Fingerprint& saved, const RunStart& start) {
    TDOCK_RETURN_IF_ERROR(CheckFingerprint(saved, fingerprint_, context_.allow_changed));
    const std::vector<std::string> changes = Changes(saved, fingerprint_);
    changed_ = !changes.empty();
    branches_ = start.of_another_run;
    if (start.manifest.place.part == 0) return absl::OkStatus();
    const std::string inside =
        absl::StrCat(start.checkpoint, " is in the middle of a step, which can be finished only ");
    if (partition_->shared()) {
      return absl::FailedPreconditionError(absl::StrCat(
          inside, "with a dock of the run's own, because its rows are in it: go on without trainer.serve and ",
          "trainer.dock until a step is saved as a whole"));
    }
    for (const std::string& name : changes) {
      // The samples of the step are on the dock.
      if (name == "data" || name == "validation" || name == "ptx") continue;
      if (absl::StrContains(name, "optim.") || absl::StartsWith(name, "trainer.")) continue;
      return absl::FailedPreconditionError(absl::StrCat(inside, "as it was begun, but ", name,
                                                        " has changed: go on without that until a step is saved as a ",
                                                        "whole, for example with trainer.save_freq=1"));
    }
    return absl::OkStatus();
  }

  // Makes the stages, and, with `make_partition`, on the dock what they need.
  absl::Status MakePlan(const std::function<absl::Status(PartitionOptions)>& make_partition) {
    policy_.decoder.SetTrainable(true);
    for (auto& [name, model] : models_) model.policy.decoder.SetTrainable(model.role.trained);
    if (config_.trainer.ema_decay > 0) average_.emplace(policy_.decoder, config_.trainer.ema_decay);
    TDOCK_ASSIGN_OR_RETURN(plan_,
                           recipe_.MakePlan({.tokenizer = *inputs_.tokenizer,
                                             .policy = policy_,
                                             .models = models_,
                                             .reward = reward_,
                                             .workers = workers_,
                                             .end_tokens = inputs_.end_tokens,
                                             .validation = inputs_.validation,
                                             .chat_template = inputs_.chat_template ? &*inputs_.chat_template : nullptr,
                                             .ptx = inputs_.ptx.train.get(),
                                             .total_steps = total_steps_,
                                             .max_row_tokens = MaxRowTokens(policy_.decoder.config()),
                                             .rounding_seed = SeedFor(config_, SeedPurpose::kRounding),
                                             .publish = [this](int64_t version) { return OnNewWeights(version); },
                                             .log = context_.log,
                                             .served = Streams() && RunsTogether(config_) ? &served_ : nullptr,
                                             .check_stop = [this] { return StopInside(); }}));
    TDOCK_RETURN_IF_ERROR(partition_->CheckExternal(plan_.stages));
    feeder_.SetOptions({.samples_per_prompt = recipe_.samples_per_prompt(),
                        .makes_groups = plan_.feeds_groups,
                        .columns = plan_.feed,
                        .report = [this](Feeder::Samples samples, StepMetrics& metrics) {
                          ReportLengths(recipe_.phase(), samples, config_.data.max_prompt_length, metrics);
                        }});
    if (recipe_.phase() == data::Phase::kPrompt) {
      for (const std::string& kept : config_.data.columns.keep) plan_.columns.push_back({kept, ColumnType::Bytes()});
    }
    TDOCK_RETURN_IF_ERROR(make_partition(
        {.columns = plan_.columns, .group_size = recipe_.samples_per_prompt(), .retain_for = RetainedFor()}));
    if (plan_.gathering.has_value()) {
      gather_.emplace(*plan_.gathering, partition_->dock(), partition_->name(), plan_.columns,
                      recipe_.samples_per_prompt(), plan_.stages);
      TDOCK_RETURN_IF_ERROR(make_partition(gather_->options()));
      TDOCK_RETURN_IF_ERROR(gather_->Register());
    }
    for (size_t i = gather_.has_value() ? plan_.gathering->stages : 0; i < plan_.stages.size(); ++i) {
      const bool last = i + 1 == plan_.stages.size();
      const bool begins_step = Streams() && i == StreamedStages(plan_.stages);
      TDOCK_RETURN_IF_ERROR(
          runner_.Add(*plan_.stages[i], last && partition_->outlives_run(), [&](ConsumerOptions& consumer) {
            if (Streams()) AddNeedsOfStep(plan_.stages, i, consumer.reads);
            if (begins_step) BeginStep(consumer);
            if (config_.trainer.executor.balance_batch) BalanceLengths(*plan_.stages[i], consumer);
          }));
    }
    stage_run_.emplace(StageRun{.partition = *partition_,
                                .runner = runner_,
                                .stages = plan_.stages,
                                .group_size = recipe_.samples_per_prompt(),
                                .section = config_.trainer.executor,
                                .meter = meter_,
                                .timeline = timeline_,
                                .context = context_});
    return absl::OkStatus();
  }

  // Rows stay until every stage is done with them; first the last one, which says what was trained on.
  std::vector<std::string> RetainedFor() const {
    std::vector<std::string> names;
    for (size_t i = plan_.stages.size(); i-- > (plan_.gathering.has_value() ? plan_.gathering->stages : 0);) {
      names.push_back(plan_.stages[i]->consumer().name);
    }
    return names;
  }

  // How the first stage of a step takes what was answered ahead.
  void BeginStep(ConsumerOptions& consumer) const {
    consumer.unit = Unit::kGroup;
    if (config_.async.max_version_lag >= 0) consumer.max_version_lag = config_.async.max_version_lag;
    consumer.stale = config_.async.stale;
  }

  // Of a stage that reads answers, and for which it does not matter which of them it is given together.
  static void BalanceLengths(const Stage& stage, ConsumerOptions& consumer) {
    const std::vector<std::string>& reads = consumer.reads;
    if (stage.together() == Together::kResult || std::find(reads.begin(), reads.end(), kResponses) == reads.end())
      return;
    consumer.sampler = Sampler::kLengthBalanced;
    consumer.length_column = kResponses;
  }

  // Whether prompts are answered ahead of the step that trains on them.
  bool Streams() const { return trainer::Streams(config_); }

  absl::Status TrainAndSave() {
    config::Spec spec;
    recipe_.Bind(spec);
    TDOCK_RETURN_IF_ERROR(Annotate(run_->WriteConfig(config::Dump(spec)), "writing the configuration"));
    TDOCK_RETURN_IF_ERROR(partition_->Announce(run_->path(), plan_.stages));
    if (changed_ || branches_) TDOCK_RETURN_IF_ERROR(SaveBeginning());
    TDOCK_RETURN_IF_ERROR(Annotate(RunSteps(), config_.recipe));
    return Annotate(Guarded([&] { return SaveAtEnd(); }), "saving the checkpoint");
  }

  absl::Status OnNewWeights(int64_t version) {
    if (average_.has_value()) average_->Update();
    if (gather_.has_value()) {
      TDOCK_RETURN_IF_ERROR(partition_->dock().PublishWeights(gather_->partition(), version));
    }
    return partition_->dock().PublishWeights(partition_->name(), version);
  }

  // The rows that are answered ahead, from those that there are.
  void BeginStreaming() {
    const int64_t groups = config_.data.train_batch_size;
    const int64_t most = config_.trainer.total_training_steps;
    streaming_.emplace(*stage_run_, feeder_,
                       Streaming::Options{.step_groups = groups,
                                          .batch_groups = DrawnAtOnce(config_),
                                          .most_groups = (1 + std::max<int64_t>(config_.async.steps_ahead, 1)) * groups,
                                          .limited = most > 0,
                                          .steps = most - result_.steps,
                                          .on_threads = RunsTogether(config_),
                                          .serve_weights = [this] { ServeWeights(); }});
  }

  absl::Status RunSteps() {
    if (Streams()) BeginStreaming();
    context_.progress.Begin(config_.recipe, total_steps_, result_.steps);
    peak_flops_ = config_.trainer.peak_flops > 0 ? config_.trainer.peak_flops
                                                 : MeasurePeakFlops(workers_, policy_.decoder.compute_type(),
                                                                    policy_.decoder.device(), context_.clock);
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
    if (streaming_.has_value()) TDOCK_RETURN_IF_ERROR(streaming_->Stop());
    context_.progress.End(result_.ended);
    return absl::OkStatus();
  }

  // Step 0 trains nothing: it is the validation before the first.
  absl::Status OneStep(int64_t step) {
    step_ = step;
    if (open_ == nullptr) TDOCK_RETURN_IF_ERROR(OpenNext(step));
    absl::Status read;
    if (step > 0) {
      const absl::Time begun = context_.clock.Now();
      const absl::Status run = RunStages(step);
      open_->seconds += absl::ToDoubleSeconds(context_.clock.Now() - begun);
      TDOCK_RETURN_IF_ERROR(run);
      read = NextBatch(step);
    }
    if (read.ok() && !more_) result_.ended = EndingAfter(config_, step);
    // This step is done, whatever the next one needs.
    if (const absl::Status concluded = Conclude(step, open_->metrics); !concluded.ok()) {
      result_.ended.clear();  // not yet, for who goes on
      return concluded;
    }
    open_.reset();
    parts_ = 0;
    result_.steps = step;
    begun_ = true;
    return Annotate(read, "reading the training data of the next step");
  }

  // Reads the batch of the step after this one, and notes whether there is one.
  absl::Status NextBatch(int64_t step) {
    moment_.Enter(step, "reading the training data of the next");
    const int64_t most = config_.trainer.total_training_steps;
    more_ = false;
    if (most > 0 && step >= most) return absl::OkStatus();
    TDOCK_ASSIGN_OR_RETURN(more_, streaming_.has_value() ? streaming_->HasMore() : feeder_.ReadAhead());
    return absl::OkStatus();
  }

  // Feeds its samples, if it has any.
  absl::Status OpenNext(int64_t step) {
    // No copies are needed: it is used only while nothing has been trained in the step.
    if (partition_->shared() && step > 0) before_step_ = CollectState();
    has_trained_ = false;
    auto opened = std::make_unique<OpenStep>();
    opened->metrics.Mean("training/global_step", static_cast<double>(step));
    if (saving_ > absl::ZeroDuration())
      opened->metrics.Mean("timing_s/save_checkpoint", absl::ToDoubleSeconds(saving_));
    saving_ = absl::ZeroDuration();
    if (step > 0 && !gather_.has_value() && !streaming_.has_value()) {
      TDOCK_RETURN_IF_ERROR(feeder_.Feed(partition_->dock(), partition_->name(), opened->metrics).status());
    }
    open_ = std::move(opened);
    return absl::OkStatus();
  }

  // The prompts of a round of gathering.
  absl::StatusOr<int64_t> FeedRound() {
    const absl::StatusOr<bool> more = feeder_.ReadAhead();
    if (!more.ok()) return Annotate(more.status(), "reading the training data");
    if (!*more) return 0;
    TDOCK_ASSIGN_OR_RETURN(const PutResult fed, feeder_.Feed(partition_->dock(), gather_->partition(), open_->metrics));
    return std::ssize(fed.rows);
  }

  // Carries out the stages of the plan that come in rounds; the others get what those give.
  absl::Status GatherRows(StageContext& context) {
    TDOCK_RETURN_IF_ERROR(gather_->Run(context, meter_, [this] { return FeedRound(); }).status());
    open_->stage = plan_.gathering->stages;
    return absl::OkStatus();
  }

  absl::Status RunStages(int64_t step) {
    moment_.Enter(step, "carrying out its stages");
    StageContext stage_context{step, open_->metrics};
    stage_context.check_stop = [this] { return StopInside(); };
    const BeginStage begin = [this](Stage& stage) {
      if (stage.trains()) has_trained_ = true;
      return StopInside();
    };
    if (streaming_.has_value()) {
      TDOCK_RETURN_IF_ERROR(RunStreamed(stage_context));
    } else {
      if (gather_.has_value() && open_->stage == 0) TDOCK_RETURN_IF_ERROR(GatherRows(stage_context));
      TDOCK_RETURN_IF_ERROR(RunsTogether(config_) ? RunTogether(*stage_run_, open_->stage, stage_context, begin)
                                                  : RunInTurn(*stage_run_, open_->stage, stage_context, begin));
    }
    open_->stage = plan_.stages.size();
    const data::LoaderPosition fed = Fed();
    open_->metrics.Mean("training/epoch", static_cast<double>(fed.drawn / inputs_.data.train->size()));
    open_->metrics.Mean("data/overlong", static_cast<double>(fed.counts.overlong));
    open_->metrics.Mean("data/truncated", static_cast<double>(fed.counts.truncated));
    open_->metrics.Mean("data/incomplete", static_cast<double>(fed.counts.incomplete + fed.counts.bad));
    return Account(open_->metrics);
  }

  data::LoaderPosition Fed() {
    data::LoaderPosition fed;
    const auto read = [&] {
      fed = feeder_.position();
      return absl::OkStatus();
    };
    (streaming_.has_value() ? streaming_->WhileNotFeeding(read) : read()).IgnoreError();
    return fed;
  }

  absl::Status RunStreamed(StageContext& context) {
    if (!streaming_->started()) streaming_->Start();
    return streaming_->RunStep(context);
  }

  // Gives the rollout the weights as they are.
  void ServeWeights() {
    if (!RunsTogether(config_)) return;  // answers are sampled with the policy itself
    served_.Publish(std::make_shared<const model::Decoder>(policy_.decoder.Snapshot()), policy_.version);
  }

  // For what takes long. What a dock of others holds is not saved: what has changed the weights is finished.
  absl::Status StopInside() const { return CanSaveHere() ? context_.CheckStop() : absl::OkStatus(); }

  // The contents of the dock after the step, and the progress of each stage.
  absl::Status Account(StepMetrics& metrics) {
    std::vector<std::string> partitions = {partition_->name()};
    if (gather_.has_value()) partitions.push_back(gather_->partition());
    int64_t rows = 0, held_bytes = 0;
    for (const std::string& partition : partitions) {
      TDOCK_ASSIGN_OR_RETURN(const PartitionStatus status, partition_->dock().GetStatus(partition));
      rows += status.rows;
      held_bytes += status.held_bytes;
      for (const NamedConsumerStatus& consumer : status.consumers) {
        metrics.Mean("dock/completed/" + consumer.name, static_cast<double>(consumer.status.completed));
      }
    }
    // Means, because a step that was stopped while it was validated accounts for itself again.
    metrics.Mean("dock/rows", static_cast<double>(rows));
    metrics.Mean("dock/held_bytes", static_cast<double>(held_bytes));
    return absl::OkStatus();
  }

  // Validates where that is due, ends the run if its rule is met, and reports the step.
  absl::Status Conclude(int64_t step, StepMetrics& gathered) {
    const int64_t every = config_.trainer.test_freq;
    const bool due = step == 0 ? config_.trainer.val_before_train : every > 0 && step % every == 0;
    validated_.clear();
    if (!plan_.evaluations.empty() && (due || !result_.ended.empty())) {
      if (CanSaveHere()) TDOCK_RETURN_IF_ERROR(context_.CheckStop());
      TDOCK_RETURN_IF_ERROR(Annotate(Validate(step, gathered), "validating"));
    }
    if (step > 0) gathered.Mean("timing_s/step", open_->seconds);
    TDOCK_RETURN_IF_ERROR(LogTimeline(step, gathered));
    Metrics metrics = gathered.Values();
    AddSpeed(peak_flops_, metrics);
    moment_.NoteStep(metrics);
    Progress::Figures figures;
    for (const auto& [label, metric] : plan_.shown) {
      if (const auto found = metrics.find(metric); found != metrics.end()) figures.emplace_back(label, found->second);
    }
    context_.progress.Update(step, figures);
    return run_->LogMetrics(config_.recipe, step, metrics);
  }

  // Answers `tdock explain` while it lives; null, with a warning, where the folder cannot have a socket.
  std::unique_ptr<RunExplainer> StartExplainer() {
    std::vector<ExplainedStage> stages;
    for (size_t i = 0; i < plan_.stages.size(); ++i) {
      const bool gathers = gather_.has_value() && i < plan_.gathering->stages;
      stages.push_back({.name = plan_.stages[i]->consumer().name,
                        .partition = gathers ? gather_->partition() : partition_->name(),
                        .external = partition_->IsExternal(*plan_.stages[i])});
    }
    auto explain = [this, stages = std::move(stages), recipe = config_.recipe, shared = partition_->shared(),
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
    for (const auto& stage : plan_.stages) {
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
    return run_->LogTimeline(config_.recipe, step, spans);
  }

  absl::Status Validate(int64_t step, StepMetrics& gathered) {
    moment_.Enter(step, "validating");
    meter_.Begin();
    timeline_.Work("validation", 0);
    StepMetrics metrics;
    std::vector<Answer> answers;
    for (const auto& evaluation : plan_.evaluations) TDOCK_RETURN_IF_ERROR(evaluation->Run(metrics, answers));
    validated_ = metrics.Values();
    result_.last = validated_;
    if (step == 0) result_.first = result_.last;
    if (stop_rule_.has_value() && step == 0 && absl::StartsWith(stop_rule_->metric, "val/") &&
        !result_.last.contains(stop_rule_->metric)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "trainer.stop_when waits for ", stop_rule_->metric, ", which these validations do not measure; they measure ",
          absl::StrJoin(NamesOf(result_.last), ", "), " (trainer.evaluations)"));
    }
    if (stop_rule_.has_value() && stop_rule_->IsMet(result_.last)) result_.ended = config_.trainer.stop_when;
    gathered.Add(metrics);
    timeline_.End("validation");
    meter_.End("testing", gathered);
    return run_->LogSamples(config_.recipe, step, answers);
  }

  // Whether a checkpoint of this moment could be gone on from. Rows on a dock of others are not in it: a step that they
  // take part in is carried out again, from the state before it, unless it has trained.
  bool CanSaveHere() const { return !partition_->shared() || open_ == nullptr || !has_trained_; }

  // Everything to go on from, in memory that it shares with the run.
  State CollectState() const {
    State state;
    state.SetInteger("loop/steps", result_.steps);
    state.SetText("loop/ended", result_.ended);
    state.SetNumber("loop/seconds", absl::ToDoubleSeconds(earlier_ + (context_.clock.Now() - started_)));
    state.Set("loop", feeder_);
    if (Streams()) {
      const auto status = partition_->dock().GetStatus(partition_->name());
      state.SetInteger(kAhead, status.ok() ? status->rows : 0);
    }
    SetNumbers(state, kFirst, result_.first);
    SetNumbers(state, kLast, result_.last);
    for (const auto& [key, value] : fingerprint_) state.SetText(absl::StrCat(kFingerprint, key), value);
    for (const auto& stage : plan_.stages) state.Set(absl::StrCat("stages/", stage->consumer().name), *stage);
    if (average_.has_value()) state.Set("average", *average_);
    if (open_ != nullptr) {
      state.SetInteger("step/stage", static_cast<int64_t>(open_->stage));
      state.SetNumber("step/seconds", open_->seconds);
      state.Set("step/metrics", open_->metrics);
      if (gather_.has_value()) state.Set("step/gather", *gather_);
    }
    return state;
  }

  absl::Status Restore(const State& state, const RunStart& start) {
    TDOCK_RETURN_IF_ERROR(LoadToGoOn(context_.env, start.checkpoint, policy_.decoder));
    for (const auto& stage : plan_.stages) {
      TDOCK_RETURN_IF_ERROR(state.Get(absl::StrCat("stages/", stage->consumer().name), *stage));
    }
    if (average_.has_value()) TDOCK_RETURN_IF_ERROR(state.Get("average", *average_));
    TDOCK_ASSIGN_OR_RETURN(result_.steps, state.Integer("loop/steps"));
    // A branch, or a run that has changed, may have more steps to do.
    if (!changed_ && !branches_) {
      TDOCK_ASSIGN_OR_RETURN(result_.ended, state.Text("loop/ended"));
    }
    TDOCK_RETURN_IF_ERROR(state.Get("loop", feeder_));
    if (feeder_.begun_anew()) context_.log("the data has changed: the run goes on with its beginning");  // as allowed
    TDOCK_ASSIGN_OR_RETURN(const double seconds, state.Number("loop/seconds"));
    earlier_ = absl::Seconds(seconds);
    TDOCK_ASSIGN_OR_RETURN(result_.first, NumbersUnder(state, kFirst));
    TDOCK_ASSIGN_OR_RETURN(result_.last, NumbersUnder(state, kLast));
    begun_ = true;
    parts_ = start.manifest.place.part;
    if (parts_ > 0) TDOCK_RETURN_IF_ERROR(RestoreStep(state));
    if (!start.of_another_run) {
      for (const auto& [name, text] : state.texts()) {
        if (!absl::StartsWith(name, kLogs)) continue;
        TDOCK_ASSIGN_OR_RETURN(const int64_t bytes, state.Integer(name));
        logs_[name.substr(kLogs.size())] = static_cast<uint64_t>(std::max<int64_t>(bytes, 0));
      }
    }
    return partition_->shared() ? partition_->RollBack(result_.steps, policy_.version) : absl::OkStatus();
  }

  absl::Status RestoreStep(const State& state) {
    open_ = std::make_unique<OpenStep>();
    TDOCK_ASSIGN_OR_RETURN(const int64_t stage, state.Integer("step/stage"));
    if (stage < 0 || std::cmp_greater(stage, plan_.stages.size())) {
      return absl::InvalidArgumentError(absl::StrCat("step/stage is ", stage, ", of ", plan_.stages.size(), " stages"));
    }
    open_->stage = static_cast<size_t>(stage);
    TDOCK_ASSIGN_OR_RETURN(open_->seconds, state.Number("step/seconds"));
    if (gather_.has_value()) TDOCK_RETURN_IF_ERROR(state.Get("step/gather", *gather_));
    return state.Get("step/metrics", open_->metrics);
  }

  // What a checkpoint of `state` holds beside it: `decoder`, the rows, and where the logs are.
  absl::StatusOr<CheckpointContents> Contents(State state, std::shared_ptr<const model::Decoder> decoder) {
    TDOCK_ASSIGN_OR_RETURN(const LogPosition logs, run_->Position());
    for (const auto& [file, bytes] : logs) state.SetInteger(absl::StrCat(kLogs, file), static_cast<int64_t>(bytes));
    std::map<std::string, std::string> rows;  // by the names of files
    if (!partition_->shared()) {
      TDOCK_ASSIGN_OR_RETURN(rows[kPartition], partition_->dock().ExportPartition(partition_->name()));
      if (gather_.has_value()) {
        TDOCK_ASSIGN_OR_RETURN(rows[kSampling], partition_->dock().ExportPartition(gather_->partition()));
      }
    }
    uint64_t bytes = static_cast<uint64_t>(state.tensor_bytes()) + BytesToGoOn(*decoder);
    for (const auto& [file, image] : rows) bytes += image.size();
    return CheckpointContents{
        .bytes = bytes,
        .write = [this, state = std::move(state), decoder = std::move(decoder),
                  rows = std::move(rows)](const std::string& folder) -> absl::Status {
          Env& env = context_.env;
          TDOCK_RETURN_IF_ERROR(SaveToGoOn(env, folder, *decoder, *inputs_.tokenizer, config_.model));
          TDOCK_RETURN_IF_ERROR(WriteState(env, folder, state));
          for (const auto& [file, image] : rows) {
            TDOCK_RETURN_IF_ERROR(WriteFileAtomically(env, JoinPath(folder, file), image));
          }
          return absl::OkStatus();
        }};
  }
  // The run's own, which must not change meanwhile.
  std::shared_ptr<const model::Decoder> OwnDecoder() const { return {std::shared_ptr<void>(), &policy_.decoder}; }

  // Of this moment, between two stages that train.
  absl::StatusOr<CheckpointContents> ContentsNow(bool copies) {
    absl::StatusOr<CheckpointContents> contents = absl::InternalError("nothing was collected");
    const auto collect = [&] {
      if (copies) {
        auto decoder = std::make_shared<const model::Decoder>(policy_.decoder.Snapshot());
        contents = Contents(CollectState().Snapshot(), std::move(decoder));
      } else {
        contents = Contents(CollectState(), OwnDecoder());
      }
      return contents.status();
    };
    TDOCK_RETURN_IF_ERROR(streaming_.has_value() ? streaming_->WhileNotFeeding(collect) : collect());
    return contents;
  }

  // What the run goes on from, with what has changed, or in the folder of a branch.
  absl::Status SaveBeginning() {
    TDOCK_ASSIGN_OR_RETURN(CheckpointContents contents, ContentsNow(/*copies=*/false));
    return checkpoints_->WriteNow({result_.steps, parts_}, {}, std::move(contents), /*again=*/true);
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
    moment_.Enter(result_.steps, "saving a checkpoint");
    const CheckpointPlace place{result_.steps, 0};
    absl::StatusOr<CheckpointContents> contents = Guarded([&] { return ContentsNow(/*copies=*/true); });
    if (contents.ok()) {
      checkpoints_->Write(place, validated_, *std::move(contents));
    } else {
      checkpoints_->NoteFailure(place, Annotate(contents.status(), absl::StrCat("saving ", ToText(place))));
    }
    saving_ += context_.clock.Now() - begun;
    return absl::OkStatus();
  }

  absl::Status SaveAtEnd() {
    moment_.Enter(result_.steps, "saving the model");
    if (!ParseSaveFreq(config_.trainer.save_freq)->never()) {
      TDOCK_ASSIGN_OR_RETURN(CheckpointContents contents, ContentsNow(/*copies=*/false));
      const absl::Status saved = checkpoints_->WriteNow({result_.steps, 0}, validated_, std::move(contents));
      // The model is what counts now.
      if (!saved.ok()) context_.log(absl::StrCat("warning: ", saved.message()));
    }
    if (average_.has_value()) {
      average_->Swap();
      TDOCK_RETURN_IF_ERROR(SaveForUse(context_.env, run_->checkpoint_path() + "-ema", policy_.decoder,
                                       *inputs_.tokenizer, config_.model));
      average_->Swap();
    }
    for (const auto& [name, model] : models_) {
      if (!model.role.trained) continue;
      TDOCK_RETURN_IF_ERROR(SaveForUse(context_.env, absl::StrCat(run_->checkpoint_path(), "-", name),
                                       model.policy.decoder, *inputs_.tokenizer, *model.role.section));
    }
    // Last: it says that the run has ended.
    TDOCK_RETURN_IF_ERROR(
        SaveForUse(context_.env, run_->checkpoint_path(), policy_.decoder, *inputs_.tokenizer, config_.model));
    // The model is there, whatever comes of that.
    if (const absl::Status evaluated = Guarded([&] { return EvaluateSaved(); }); !evaluated.ok()) {
      context_.log(absl::StrCat("warning: evaluating ", run_->checkpoint_path(), ": ", evaluated.message()));
    }
    return run_->Sync();
  }

  // What the evaluations say before and after training, and of the folder that is left for use.
  absl::Status EvaluateSaved() {
    if (result_.last.empty()) return absl::OkStatus();
    TDOCK_ASSIGN_OR_RETURN(result_.saved, EvaluateFolder(context_.env, run_->checkpoint_path(), config_.model,
                                                         plan_.evaluations, result_.last, policy_));
    nlohmann::ordered_json figures;
    figures["before"] = result_.first;
    figures["after"] = result_.last;
    figures["saved"] = result_.saved;
    return WriteFileAtomically(context_.env, JoinPath(run_->path(), "evaluation.json"), figures.dump(2) + "\n");
  }

  // Saves a run that was told to stop where it is, and says how to go on: Cancelled, if all went well.
  absl::Status SaveStopped() {
    const std::string why(context_.CheckStop().message());
    if (!begun_) return absl::CancelledError(absl::StrCat(why, " before the first step"));
    CheckpointPlace place{result_.steps, 0};
    if (!CanSaveHere())
      return absl::CancelledError(absl::StrCat(why, " in step ", place.step + 1, ". ", WouldBeLost()));
    const bool inside = open_ != nullptr && !partition_->shared();
    if (inside) place.part = parts_ + 1;
    State state = open_ != nullptr && !inside ? *std::exchange(before_step_, std::nullopt) : CollectState();
    TDOCK_ASSIGN_OR_RETURN(CheckpointContents contents, Contents(std::move(state), OwnDecoder()));
    const absl::Status saved =
        checkpoints_->WriteNow(place, open_ == nullptr ? validated_ : Metrics(), std::move(contents));
    if (!saved.ok()) return Annotate(saved, absl::StrCat(why, "; ", WouldBeLost()));
    return absl::CancelledError(absl::StrCat(why, " after ", ToText(place), ", and saved in ",
                                             checkpoints_->PathOf(place), ". To go on: ", HowToGoOn()));
  }

  std::string HowToGoOn() const { return absl::StrCat("tdock train ", JoinPath(run_->path(), "config.yaml")); }

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
  reward::Reward& reward_;
  const std::optional<StopRule> stop_rule_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<RunDirectory> run_;
  Workers workers_;
  Policy policy_;
  std::map<std::string, RoleModel> models_;  // beside it
  const std::unique_ptr<RunPartition> partition_;
  StageRunner runner_;
  Feeder feeder_;
  PhaseMeter meter_;
  Timeline timeline_;
  RunMoment moment_;
  WeightFeed served_;
  double peak_flops_ = 0;  // per second; 0: unknown
  const int64_t total_steps_;
  std::optional<WeightAverage> average_;
  Plan plan_;  // refers to what is above
  std::optional<Gather> gather_;
  Fingerprint fingerprint_;
  LogPosition logs_;  // where the logs were in the checkpoint that the run goes on from
  const absl::Time started_;
  absl::Duration earlier_;  // that the run had taken by then

  bool changed_ = false, branches_ = false;  // since, or from, the checkpoint that the run goes on from

  bool begun_ = false;  // whether step 0 is done
  std::atomic<int64_t> step_ = 0;
  RunResult result_;
  Metrics validated_;  // of the last step
  bool more_ = false;  // whether there is a next step
  std::unique_ptr<OpenStep> open_;
  int64_t parts_ = 0;                      // how often the run was stopped in this step
  std::optional<State> before_step_;       // see CanSaveHere()
  std::atomic<bool> has_trained_ = false;  // a stage of the open step, or has begun to
  absl::Duration saving_;                  // that the steps have waited for since the last one
  std::optional<RunCheckpoints> checkpoints_;
  std::optional<StageRun> stage_run_;
  std::optional<Streaming> streaming_;  // last: its threads use what is above
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
