#include "trainer/loop/train.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "data/loader.h"
#include "model/decoder/adapter_files.h"
#include "model/decoder/checkpoint.h"
#include "trainer/loop/feed.h"
#include "trainer/loop/phase_meter.h"
#include "trainer/loop/run_partition.h"
#include "trainer/loop/speed.h"
#include "trainer/loop/stop_rule.h"
#include "trainer/stages/guard.h"
#include "trainer/stages/weight_average.h"

namespace tdock::trainer {
namespace {

using SampleLoader = data::Loader<data::EncodedSample>;

std::string Grouped(int64_t number) {
  std::string digits = absl::StrCat(number);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3) digits.insert(static_cast<size_t>(i), ",");
  return digits;
}

// 0: as many as the steps need.
int64_t Epochs(const RunConfig& config) {
  const bool by_steps = config.trainer.total_training_steps > 0;
  return config.trainer.total_epochs > 0 || by_steps ? config.trainer.total_epochs : 1;
}

data::LoaderOptions LoaderOptionsFor(const RunConfig& config, const RunContext& context) {
  data::LoaderOptions options = data::LoaderOptionsOf(config.data);
  options.seed = DeriveSeed(SeedFor(config, SeedPurpose::kData), static_cast<uint64_t>(config.data.seed));
  options.epochs = Epochs(config);
  options.report = [&context](const absl::Status& bad) { context.log(absl::StrCat("left out: ", bad.message())); };
  return options;
}

// Where the data may leave samples out, a few too many.
int64_t TotalSteps(const RunConfig& config, int64_t samples) {
  const int64_t batch = config.data.train_batch_size;
  const int64_t per_epoch = config.data.drop_last ? samples / batch : (samples + batch - 1) / batch;
  const int64_t by_epochs = per_epoch * Epochs(config);
  const int64_t by_steps = config.trainer.total_training_steps;
  if (Epochs(config) == 0) return by_steps;
  return by_steps > 0 ? std::min(by_steps, by_epochs) : by_epochs;
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
        partition_(std::move(partition)),
        runner_(partition_->dock(), partition_->name()),
        loader_(*inputs_.data.train, LoaderOptionsFor(config_, context_)),
        meter_(context_.clock, context_.env, policy_.decoder.device()),
        total_steps_(TotalSteps(config_, inputs_.data.train->size())) {}

  // Makes the stages, and on the dock what they need.
  absl::Status MakePlan() {
    policy_.decoder.SetTrainable(true);
    if (config_.trainer.ema_decay > 0) average_.emplace(policy_.decoder, config_.trainer.ema_decay);
    TDOCK_ASSIGN_OR_RETURN(plan_,
                           recipe_.MakePlan({.tokenizer = *inputs_.tokenizer,
                                             .policy = policy_,
                                             .reward = reward_,
                                             .workers = workers_,
                                             .end_tokens = inputs_.end_tokens,
                                             .validation = inputs_.validation,
                                             .ptx = inputs_.ptx.train.get(),
                                             .total_steps = total_steps_,
                                             .max_row_tokens = MaxRowTokens(policy_.decoder.config()),
                                             .rounding_seed = SeedFor(config_, SeedPurpose::kRounding),
                                             .publish = [this](int64_t version) { return OnNewWeights(version); }}));
    TDOCK_RETURN_IF_ERROR(partition_->CheckExternal(plan_.stages));
    if (recipe_.phase() == data::Phase::kPrompt) {
      for (const std::string& kept : config_.data.columns.keep) plan_.columns.push_back({kept, ColumnType::Bytes()});
    }
    TDOCK_RETURN_IF_ERROR(partition_->Create({.columns = plan_.columns,
                                              .group_size = recipe_.samples_per_prompt(),
                                              .retain_for = {plan_.stages.back()->consumer().name}}));
    for (const auto& stage : plan_.stages) TDOCK_RETURN_IF_ERROR(runner_.Add(*stage));
    return absl::OkStatus();
  }

  absl::Status MakeRunDirectory() {
    const std::string& path = config_.trainer.run_dir;
    TDOCK_ASSIGN_OR_RETURN(run_, path.empty()
                                     ? RunDirectory::CreateNext(context_.env, context_.clock, "runs", config_.recipe)
                                     : RunDirectory::Create(context_.env, context_.clock, path));
    config_.trainer.run_dir = run_->path();
    return absl::OkStatus();
  }

  absl::StatusOr<RunResult> Train() override {
    ReportHead head{.title = absl::StrCat(absl::AsciiStrToUpper(config_.recipe), ": ", run_->path()),
                    .facts = {{"seed", absl::StrCat(config_.seed)},
                              {"parameters", Grouped(policy_.decoder.parameter_count())},
                              {"device", absl::StrCat(config_.device, ", ", workers_.threads(), " threads")}},
                    .problem = ""};
    RunResult result{.run_dir = run_->path(), .ended = "", .first = {}, .last = {}};
    const absl::Status status = Guarded([&] { return TrainAndSave(result); });
    partition_->Close();
    head.problem = std::string(status.message());
    const absl::Status reported = Guarded([&] { return run_->WriteReport(head); });
    TDOCK_RETURN_IF_ERROR(status);
    TDOCK_RETURN_IF_ERROR(reported);
    return result;
  }

 private:
  absl::Status TrainAndSave(RunResult& result) {
    config::Spec spec;
    recipe_.Bind(spec);
    TDOCK_RETURN_IF_ERROR(Annotate(run_->WriteConfig(config::Dump(spec)), "writing the configuration"));
    TDOCK_RETURN_IF_ERROR(partition_->Announce(run_->path(), plan_.stages));
    TDOCK_RETURN_IF_ERROR(Annotate(RunSteps(result), config_.recipe));
    return Annotate(Guarded([&] { return Save(); }), "saving the checkpoint");
  }

  absl::Status OnNewWeights(int64_t version) {
    if (average_.has_value()) average_->Update();
    return partition_->dock().PublishWeights(partition_->name(), version);
  }

  absl::Status RunSteps(RunResult& result) {
    context_.progress.Begin(config_.recipe, total_steps_);
    peak_flops_ = config_.trainer.peak_flops > 0 ? config_.trainer.peak_flops
                                                 : MeasurePeakFlops(workers_, policy_.decoder.compute_type(),
                                                                    policy_.decoder.device(), context_.clock);
    // A batch ahead, so that the last step is known as such.
    std::optional<SampleLoader::Batch> batch;
    TDOCK_RETURN_IF_ERROR(Annotate(NextBatch(0, batch), "reading the training data"));
    for (int64_t step = 0; result.ended.empty(); ++step) {
      TDOCK_RETURN_IF_ERROR(Annotate(context_.CheckStop(), absl::StrCat("before step ", step)));
      const absl::Status status = Guarded([&]() -> absl::Status {
        StepMetrics metrics;
        metrics.Mean("training/global_step", static_cast<double>(step));
        absl::Status read;
        if (step > 0) {
          TDOCK_RETURN_IF_ERROR(Step(*batch, step, metrics));
          read = NextBatch(step, batch);
        }
        result.steps = step;
        if (!read.ok()) {
          // This step is done, whatever the next one needs.
          TDOCK_RETURN_IF_ERROR(Conclude(step, metrics, result));
          return Annotate(read, "reading the training data of the next step");
        }
        if (!batch.has_value()) {
          result.ended = step == config_.trainer.total_training_steps && step > 0
                             ? absl::StrCat("all ", step, " steps")
                             : absl::StrCat("the end of epoch ", Epochs(config_));
        }
        return Conclude(step, metrics, result);
      });
      TDOCK_RETURN_IF_ERROR(Annotate(status, absl::StrCat("step ", step)));
    }
    context_.progress.End(result.ended);
    return absl::OkStatus();
  }

  // The batch of the step after this one; nothing after the last.
  absl::Status NextBatch(int64_t step, std::optional<SampleLoader::Batch>& batch) {
    const int64_t most = config_.trainer.total_training_steps;
    if (most > 0 && step == most) {
      batch.reset();
      return absl::OkStatus();
    }
    TDOCK_ASSIGN_OR_RETURN(batch, loader_.Next());
    return absl::OkStatus();
  }

  absl::Status Step(const SampleLoader::Batch& batch, int64_t step, StepMetrics& metrics) {
    const absl::Time begun = context_.clock.Now();
    TDOCK_RETURN_IF_ERROR(Annotate(Feed(batch), "feeding the samples"));
    ReportLengths(recipe_.phase(), batch, config_.data.max_prompt_length, metrics);
    StageContext stage_context{step, metrics};
    int64_t rows = static_cast<int64_t>(batch.size()) * recipe_.samples_per_prompt();
    for (const auto& stage : plan_.stages) {
      meter_.Begin();
      TDOCK_ASSIGN_OR_RETURN(rows, RunStage(*stage, rows, stage_context));
      meter_.End(stage->consumer().name, metrics);
    }
    metrics.Mean("timing_s/step", absl::ToDoubleSeconds(context_.clock.Now() - begun));
    const data::LoaderCounts& counts = loader_.position().counts;
    metrics.Mean("training/epoch", static_cast<double>(loader_.position().drawn / inputs_.data.train->size()));
    metrics.Mean("data/overlong", static_cast<double>(counts.overlong));
    metrics.Mean("data/truncated", static_cast<double>(counts.truncated));
    metrics.Mean("data/incomplete", static_cast<double>(counts.incomplete + counts.bad));
    return Account(metrics);
  }

  // Of the rows, those that it leaves to the next stages.
  absl::StatusOr<int64_t> RunStage(Stage& stage, int64_t rows, StageContext& context) {
    if (rows > 0 && partition_->IsExternal(stage)) return partition_->Await(stage, context);
    const int64_t units = stage.consumer().unit == Unit::kGroup ? rows / recipe_.samples_per_prompt() : rows;
    TDOCK_ASSIGN_OR_RETURN(const int64_t dropped, runner_.Run(stage, units, context));
    return rows - dropped;
  }

  // Puts samples_per_prompt() rows for each sample, a group of their own.
  absl::Status Feed(const SampleLoader::Batch& batch) {
    TDOCK_ASSIGN_OR_RETURN(const Batch rows, plan_.feed(batch));
    PutRequest request{.partition = partition_->name()};
    std::vector<int64_t> repeated;
    for (int64_t i = 0; i < rows.rows(); ++i) {
      for (int64_t n = 0; n < recipe_.samples_per_prompt(); ++n) {
        repeated.push_back(i);
        request.groups.push_back(next_group_);
      }
      ++next_group_;
    }
    TDOCK_ASSIGN_OR_RETURN(request.batch, rows.SelectRows(repeated));
    return partition_->dock().Put(request).status();
  }

  // The contents of the dock after the step, and the progress of each stage.
  absl::Status Account(StepMetrics& metrics) {
    TDOCK_ASSIGN_OR_RETURN(const PartitionStatus status, partition_->dock().GetStatus(partition_->name()));
    metrics.Mean("dock/rows", static_cast<double>(status.rows));
    metrics.Mean("dock/held_bytes", static_cast<double>(status.held_bytes));
    for (const NamedConsumerStatus& consumer : status.consumers) {
      metrics.Mean("dock/completed/" + consumer.name, static_cast<double>(consumer.status.completed));
    }
    return absl::OkStatus();
  }

  // Validates where that is due, ends the run if its rule is met, and reports the step.
  absl::Status Conclude(int64_t step, StepMetrics& gathered, RunResult& result) {
    const int64_t every = config_.trainer.test_freq;
    const bool due = step == 0 ? config_.trainer.val_before_train : every > 0 && step % every == 0;
    if (!plan_.evaluations.empty() && (due || !result.ended.empty())) {
      TDOCK_RETURN_IF_ERROR(Annotate(Validate(step, gathered, result), "validating"));
    }
    Metrics metrics = gathered.Values();
    AddSpeed(peak_flops_, metrics);
    Progress::Figures figures;
    for (const auto& [label, metric] : plan_.shown) {
      if (const auto found = metrics.find(metric); found != metrics.end()) figures.emplace_back(label, found->second);
    }
    context_.progress.Update(step, figures);
    return run_->LogMetrics(config_.recipe, step, metrics);
  }

  absl::Status Validate(int64_t step, StepMetrics& gathered, RunResult& result) {
    meter_.Begin();
    StepMetrics metrics;
    std::vector<Answer> answers;
    for (const auto& evaluation : plan_.evaluations) TDOCK_RETURN_IF_ERROR(evaluation->Run(metrics, answers));
    result.last = metrics.Values();
    if (step == 0) result.first = result.last;
    if (stop_rule_.has_value() && stop_rule_->IsMet(result.last)) result.ended = config_.trainer.stop_when;
    gathered.Add(metrics);
    meter_.End("testing", gathered);
    return run_->LogSamples(config_.recipe, step, answers);
  }

  absl::Status Save() {
    TDOCK_RETURN_IF_ERROR(SaveTo(run_->checkpoint_path()));
    if (average_.has_value()) {
      average_->Swap();
      TDOCK_RETURN_IF_ERROR(SaveTo(run_->checkpoint_path() + "-ema"));
      average_->Swap();
    }
    return run_->Sync();
  }

  absl::Status SaveTo(const std::string& folder) {
    const std::string& base = config_.model.path;
    if (base.empty()) TDOCK_RETURN_IF_ERROR(inputs_.tokenizer->Save(context_.env, folder));
    if (policy_.decoder.lora()) {
      TDOCK_RETURN_IF_ERROR(model::SaveAdapters(context_.env, JoinPath(folder, "adapter"), policy_.decoder, base));
    }
    const auto save = [&](const model::Decoder& decoder) {
      return model::SaveCheckpoint(context_.env, folder, decoder,
                                   {.dtype = config_.model.save_dtype, .tokenizer_from = base});
    };
    return policy_.decoder.lora() ? save(policy_.decoder.Merged()) : save(policy_.decoder);
  }

  Recipe& recipe_;
  RunConfig& config_;
  const RunContext context_;
  RunInputs inputs_;
  reward::Reward& reward_;
  const std::optional<StopRule> stop_rule_;
  std::unique_ptr<RunDirectory> run_;
  Workers workers_;
  Policy policy_;
  const std::unique_ptr<RunPartition> partition_;
  StageRunner runner_;
  SampleLoader loader_;
  PhaseMeter meter_;
  double peak_flops_ = 0;  // per second; 0: unknown
  const int64_t total_steps_;
  std::optional<WeightAverage> average_;
  Plan plan_;  // refers to what is above
  GroupId next_group_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingRun>> PrepareRun(Recipe& recipe, RunInputs inputs, RunContext context,
                                                        reward::Reward* reward) {
  return Guarded([&]() -> absl::StatusOr<std::unique_ptr<TrainingRun>> {
    const RunConfig& config = recipe.config();
    TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<RunPartition> partition, RunPartition::Open(config.trainer.dock, context));
    auto prepared =
        std::make_unique<PreparedRun>(recipe, std::move(context), std::move(partition), std::move(inputs), reward);
    TDOCK_RETURN_IF_ERROR(Annotate(prepared->MakePlan(), config.recipe));
    TDOCK_RETURN_IF_ERROR(prepared->MakeRunDirectory());
    return prepared;
  });
}

absl::StatusOr<std::unique_ptr<TrainingRun>> PrepareRun(Recipe& recipe, RunContext context, reward::Reward* reward) {
  TDOCK_ASSIGN_OR_RETURN(RunInputs inputs, LoadRunInputs(recipe, context.env, context.log));
  return PrepareRun(recipe, std::move(inputs), std::move(context), reward);
}

}  // namespace tdock::trainer
