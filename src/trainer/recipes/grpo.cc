#include "trainer/recipes/grpo.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "model/decoder/adapter_files.h"
#include "model/decoder/checkpoint.h"
#include "model/decoder/device.h"
#include "tdock/local_dock.h"
#include "text/shuffled_indexes.h"
#include "trainer/recipes/grpo_inputs.h"
#include "trainer/recipes/warmup.h"
#include "trainer/stages/guard.h"
#include "trainer/stages/stages.h"

namespace tdock::trainer {
namespace {

constexpr char kPartition[] = "train";

// With defaults resolved to the values that a run uses.
GrpoConfig Resolved(GrpoConfig config, const model::Decoder& decoder) {
  config.threads = model::WorkerThreads(config.threads, decoder.device());
  if (config.actor.max_row_tokens == 0) {
    config.actor.max_row_tokens = std::max<int64_t>(decoder.config().hidden_size / 3, 1);
  }
  return config;
}

std::string Grouped(int64_t number) {
  std::string digits = absl::StrCat(number);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3) digits.insert(static_cast<size_t>(i), ",");
  return digits;
}

class PreparedGrpo final : public GrpoRun {
 public:
  PreparedGrpo(const GrpoConfig& config, RunContext context, RunInputs inputs, reward::Reward* reward)
      : config_(Resolved(config, *inputs.decoder)),
        context_(context),
        inputs_(std::move(inputs)),
        reward_(reward != nullptr ? *reward : exact_match_),
        workers_(static_cast<int>(config_.threads), [] { at::init_num_threads(); }),
        engine_options_{
            .end_tokens = inputs_.end_tokens, .max_rows = config.rollout.max_num_seqs, .workers = &workers_} {}

  absl::Status MakeRunDirectory() {
    const std::string& path = config_.trainer.run_dir;
    TDOCK_ASSIGN_OR_RETURN(run_, path.empty()
                                     ? RunDirectory::CreateNext(context_.env, context_.clock, "runs", config_.recipe)
                                     : RunDirectory::Create(context_.env, context_.clock, path));
    config_.trainer.run_dir = run_->path();
    return absl::OkStatus();
  }

  absl::StatusOr<GrpoResult> Run() override {
    ReportHead head{.title = absl::StrCat("GRPO: ", run_->path()),
                    .facts = {{"seed", absl::StrCat(config_.seed)},
                              {"parameters", Grouped(inputs_.decoder->parameter_count())},
                              {"device", absl::StrCat(config_.device, ", ", workers_.threads(), " threads")}},
                    .problem = ""};
    GrpoResult result{.run_dir = run_->path()};
    const absl::Status status = Guarded([&] { return Train(result); });
    head.problem = std::string(status.message());
    const absl::Status reported = Guarded([&] { return run_->WriteReport(head); });
    TDOCK_RETURN_IF_ERROR(status);
    TDOCK_RETURN_IF_ERROR(reported);
    return result;
  }

 private:
  // Stages in the order of a step, with the number of takes that each makes per step.
  struct Placed {
    std::unique_ptr<Stage> stage;
    int64_t takes = 1;
  };

  absl::Status Train(GrpoResult& result) {
    config::Spec spec;
    Bind(spec, config_);
    TDOCK_RETURN_IF_ERROR(Annotate(run_->WriteConfig(config::Dump(spec)), "writing the configuration"));
    inputs_.decoder->SetTrainable(true);
    const ForwardOptions forward = {.workers = workers_, .max_row_tokens = config_.actor.max_row_tokens};
    TDOCK_RETURN_IF_ERROR(RunWarmup(config_, *inputs_.tokenizer, inputs_.train, inputs_.validation, *inputs_.decoder,
                                    engine_options_, forward, *run_, context_)
                              .status());
    Policy reference{inputs_.decoder->Clone()};
    Policy policy{std::move(*inputs_.decoder)};
    TDOCK_RETURN_IF_ERROR(Reinforce(policy, reference, result));
    return Annotate(Guarded([&] { return Save(policy); }), "saving the checkpoint");
  }

  absl::Status Save(const Policy& policy) {
    const std::string& folder = run_->checkpoint_path();
    const std::string& base = config_.model.path;
    if (base.empty()) TDOCK_RETURN_IF_ERROR(inputs_.tokenizer->Save(context_.env, folder));
    if (policy.decoder.lora()) {
      TDOCK_RETURN_IF_ERROR(model::SaveAdapters(context_.env, JoinPath(folder, "adapter"), policy.decoder, base));
    }
    const auto save = [&](const model::Decoder& decoder) {
      return model::SaveCheckpoint(context_.env, folder, decoder,
                                   {.dtype = config_.model.save_dtype, .tokenizer_from = base});
    };
    TDOCK_RETURN_IF_ERROR(policy.decoder.lora() ? save(policy.decoder.Merged()) : save(policy.decoder));
    return run_->Sync();
  }

  std::vector<Placed> MakeStages(Policy& policy, const Policy& reference) {
    const ForwardOptions forward = {.workers = workers_,
                                    .temperature = config_.rollout.temperature,
                                    .micro_batch_size = config_.ref.log_prob_micro_batch_size_per_gpu,
                                    .max_row_tokens = config_.actor.max_row_tokens};
    ActorOptions actor = {.forward = forward,
                          .clip_ratio_low = config_.actor.clip_ratio_low,
                          .clip_ratio_high = config_.actor.clip_ratio_high,
                          .kl_loss_coef = config_.actor.kl_loss_coef,
                          .kl_loss_type = config_.actor.kl_loss_type,
                          .optimizer = config_.actor.optim.adamw(),
                          .lr = config_.actor.optim.lr,
                          .schedule = config_.actor.optim.schedule(config_.trainer.total_training_steps),
                          .seed = SeedFor(config_, SeedPurpose::kMiniBatches)};
    actor.forward.micro_batch_size = config_.actor.ppo_micro_batch_size_per_gpu;
    std::vector<Placed> stages;
    stages.push_back({MakeRolloutStage(policy, engine_options_,
                                       {.temperature = config_.rollout.temperature,
                                        .max_new_tokens = config_.data.max_response_length,
                                        .seed = SeedFor(config_, SeedPurpose::kRollout)})});
    stages.push_back({MakeRewardStage(reward_, *inputs_.tokenizer)});
    stages.push_back({MakeLogProbStage("ref", "ref_log_prob", reference, forward)});
    stages.push_back({MakeLogProbStage("old_log_prob", "old_log_probs", policy, forward)});
    stages.push_back({MakeGrpoAdvantageStage()});
    stages.push_back(
        {MakeActorStage(policy, actor), config_.data.train_batch_size / config_.actor.ppo_mini_batch_size});
    return stages;
  }

  absl::Status Reinforce(Policy& policy, const Policy& reference, GrpoResult& result) {
    const std::unique_ptr<Dock> dock = MakeLocalDock({.clock = &context_.clock});
    const std::vector<Placed> stages = MakeStages(policy, reference);
    TDOCK_RETURN_IF_ERROR(dock->CreatePartition({.name = kPartition,
                                                 .columns = GrpoColumns(),
                                                 .group_size = config_.rollout.n,
                                                 .retain_for = {stages.back().stage->consumer().name}}));
    StageRunner runner(*dock, kPartition);
    for (const Placed& placed : stages) TDOCK_RETURN_IF_ERROR(runner.Add(*placed.stage));

    const engine::Engine engine(policy.decoder, engine_options_);
    text::ShuffledIndexes order(static_cast<int64_t>(inputs_.train.problems.size()),
                                SeedFor(config_, SeedPurpose::kPrompts));
    const int64_t steps = config_.trainer.total_training_steps;
    context_.progress.Begin("GRPO", steps);
    for (int64_t step = 0; step <= steps; ++step) {
      TDOCK_RETURN_IF_ERROR(Annotate(context_.CheckStop(), absl::StrCat("GRPO, before step ", step)));
      const absl::Status status = Guarded([&]() -> absl::Status {
        StepMetrics metrics;
        metrics.Mean("training/global_step", static_cast<double>(step));
        if (step > 0) {
          StageContext stage_context{step, metrics};
          TDOCK_RETURN_IF_ERROR(Feed(*dock, order.Next(config_.data.train_batch_size), step));
          TDOCK_RETURN_IF_ERROR(Step(runner, stages, stage_context));
          TDOCK_RETURN_IF_ERROR(Account(*dock, metrics));
        }
        if (step == steps || step % config_.trainer.test_freq == 0) {
          TDOCK_RETURN_IF_ERROR(Annotate(Test(engine, step, metrics), "testing"));
          result.final_accuracy = metrics.Values().at("val/test_accuracy");
          if (step == 0) result.warmup_accuracy = result.final_accuracy;
        }
        return Report(step, metrics.Values());
      });
      TDOCK_RETURN_IF_ERROR(Annotate(status, absl::StrCat("GRPO, step ", step)));
    }
    context_.progress.End();
    return absl::OkStatus();
  }

  // Puts rollout.n rows for each of the problems chosen.
  absl::Status Feed(Dock& dock, const std::vector<int64_t>& chosen, int64_t step) const {
    std::vector<std::vector<int32_t>> prompts;
    std::vector<std::string> texts, truths;
    PutRequest request{.partition = kPartition};
    for (size_t i = 0; i < chosen.size(); ++i) {
      const auto index = static_cast<size_t>(chosen[i]);
      const text::Problem& problem = inputs_.train.problems[index];
      const GroupId group = static_cast<GroupId>((step - 1) * config_.data.train_batch_size) + i;
      for (int64_t sample = 0; sample < config_.rollout.n; ++sample) {
        prompts.push_back(inputs_.train.encoded[index].prompt);
        texts.push_back(problem.prompt);
        truths.push_back(problem.answer);
        request.groups.push_back(group);
      }
    }
    TDOCK_RETURN_IF_ERROR(request.batch.Add("prompt", Column::FromRows(prompts)));
    TDOCK_RETURN_IF_ERROR(request.batch.Add("prompt_text", Column::FromStrings(texts)));
    TDOCK_RETURN_IF_ERROR(request.batch.Add("truth", Column::FromStrings(truths)));
    return Annotate(dock.Put(request).status(), "feeding prompts");
  }

  absl::Status Step(StageRunner& runner, const std::vector<Placed>& stages, StageContext& stage_context) {
    const absl::Time step_begun = context_.clock.Now();
    for (const Placed& placed : stages) {
      const absl::Time begun = context_.clock.Now();
      const ConsumerOptions& consumer = placed.stage->consumer();
      const int64_t units = consumer.unit == Unit::kGroup ? config_.data.train_batch_size : config_.samples_per_step();
      for (int64_t take = 0; take < placed.takes; ++take) {
        TDOCK_RETURN_IF_ERROR(runner.Run(*placed.stage, units / placed.takes, stage_context));
      }
      stage_context.metrics.Mean(absl::StrCat("timing_s/", consumer.name),
                                 absl::ToDoubleSeconds(context_.clock.Now() - begun));
    }
    stage_context.metrics.Mean("timing_s/step", absl::ToDoubleSeconds(context_.clock.Now() - step_begun));
    return absl::OkStatus();
  }

  // The contents of the dock after the step, and the progress of each stage.
  static absl::Status Account(Dock& dock, StepMetrics& metrics) {
    TDOCK_ASSIGN_OR_RETURN(const PartitionStatus status, dock.GetStatus(kPartition));
    metrics.Mean("dock/rows", static_cast<double>(status.rows));
    metrics.Mean("dock/held_bytes", static_cast<double>(status.held_bytes));
    for (const NamedConsumerStatus& consumer : status.consumers) {
      metrics.Mean("dock/completed/" + consumer.name, static_cast<double>(consumer.status.completed));
    }
    return absl::OkStatus();
  }

  absl::Status Test(const engine::Engine& engine, int64_t step, StepMetrics& metrics) {
    const absl::Time begun = context_.clock.Now();
    TDOCK_ASSIGN_OR_RETURN(const Evaluation evaluation,
                           Evaluate(engine, *inputs_.tokenizer, inputs_.test.problems, inputs_.test.encoded,
                                    config_.data.max_response_length, config_.trainer.log_val_generations));
    metrics.Mean("val/test_accuracy", evaluation.accuracy);
    metrics.Mean("timing_s/testing", absl::ToDoubleSeconds(context_.clock.Now() - begun));
    return run_->LogSamples("grpo", step, evaluation.samples);
  }

  absl::Status Report(int64_t step, Metrics metrics) {
    if (step > 0) {
      const double tokens = static_cast<double>(config_.samples_per_step()) *
                            (metrics.at("prompt_length/mean") + metrics.at("response_length/mean"));
      metrics["perf/total_num_tokens"] = tokens;
      metrics["perf/throughput"] = tokens / metrics.at("timing_s/step");
    }
    Progress::Figures figures;
    if (metrics.contains("val/test_accuracy")) figures.emplace_back("accuracy", metrics.at("val/test_accuracy"));
    if (metrics.contains("critic/score/mean")) figures.emplace_back("reward", metrics.at("critic/score/mean"));
    if (metrics.contains("actor/kl_loss")) figures.emplace_back("kl", metrics.at("actor/kl_loss"));
    context_.progress.Update(step, figures);
    return run_->LogMetrics("grpo", step, metrics);
  }

  GrpoConfig config_;
  const RunContext context_;
  RunInputs inputs_;
  reward::ExactMatch exact_match_;
  reward::Reward& reward_;
  std::unique_ptr<RunDirectory> run_;
  Workers workers_;
  const engine::EngineOptions engine_options_;
};

absl::StatusOr<std::unique_ptr<GrpoRun>> Prepare(const GrpoConfig& config, RunContext context, reward::Reward* reward) {
  // Threads divide samples, not operations: those of a small model are too short to be worth a barrier each, and on a
  // busy machine a barrier waits for a thread that is not running.
  at::set_num_threads(static_cast<int>(config.intra_op_threads));
  TDOCK_ASSIGN_OR_RETURN(RunInputs inputs, LoadRunInputs(config, context.env));
  auto prepared = std::make_unique<PreparedGrpo>(config, context, std::move(inputs), reward);
  TDOCK_RETURN_IF_ERROR(prepared->MakeRunDirectory());
  return prepared;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpoRun>> PrepareGrpo(const GrpoConfig& config, RunContext context,
                                                     reward::Reward* reward) {
  return Guarded([&] { return Prepare(config, context, reward); });
}

}  // namespace tdock::trainer
