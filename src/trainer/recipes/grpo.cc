// GRPO: reinforcement learning with advantages relative to the other answers to the same prompt.
//
//   feeder ─► rollout ─► reward ─► (ref) ─► (old_log_prob) ─► advantage ─► actor
//
// The reference model and its column are there only where a KL to it is in the loss or in the reward.
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "trainer/loop/feed.h"
#include "trainer/recipes/actor_section.h"
#include "trainer/recipes/recipes.h"
#include "trainer/stages/actor_objective.h"
#include "trainer/stages/advantage_stage.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/stages.h"
#include "trainer/stages/update_stage.h"

namespace tdock::trainer {
namespace {

struct GrpoConfig : RunConfig {
  RolloutSection rollout;
  ActorSection actor;
  AlgorithmSection algorithm;
  struct {
    int64_t log_prob_micro_batch_size_per_gpu = 0;
  } ref;
};

class GrpoRecipe final : public Recipe {
 public:
  GrpoRecipe() {
    config_.recipe = "grpo";
    config_.actor.optim.lr = 1e-6;
  }

  RunConfig& config() override { return config_; }

  void Bind(config::Spec& spec) override {
    BindRun(spec, config_);
    BindRollout(spec, config_.rollout, /*samples=*/true);
    BindActor(spec, config_.actor, config_.algorithm, config_, config_.rollout);
    spec.Int("ref.log_prob_micro_batch_size_per_gpu", &config_.ref.log_prob_micro_batch_size_per_gpu,
             "Samples in one forward pass of the reference and old log-probabilities; 0: as "
             "actor.ppo_micro_batch_size_per_gpu's 0.")
        .AtLeast(0)
        .AtMost(kMaxBatch);
    spec.Check({"rollout.quantization", "device", "model.compute_dtype", "model.batch_invariant"},
               [this]() -> std::vector<std::string> {
                 const at::ScalarType dtype = config_.model.compute_dtype;
                 const bool is_invariant = config_.device == "cpu" && (dtype == at::kFloat || dtype == at::kBFloat16) &&
                                           config_.model.batch_invariant;
                 if (!config_.rollout.int8_weights || is_invariant) return {};
                 return {
                     "weights in int8 are for the CPU with model.compute_dtype float32 or bfloat16 and "
                     "model.batch_invariant: set "
                     "rollout.quantization to none"};
               });
    spec.Check({"data.train_batch_size", "rollout.n"}, [this]() -> std::vector<std::string> {
      const int64_t samples = config_.data.train_batch_size * config_.rollout.n;
      if (samples <= kMaxBatch) return {};
      return {absl::StrCat("a step has ", samples, " samples; at most ", kMaxBatch, " are possible")};
    });
  }

  data::Phase phase() const override { return data::Phase::kPrompt; }
  int64_t samples_per_prompt() const override { return config_.rollout.n; }
  int64_t longest_tokens() const override {
    return config_.data.max_prompt_length + config_.rollout.max_response_length;
  }
  std::string longest_keys() const override { return "data.max_prompt_length + data.max_response_length"; }
  StepShape shape() const override {
    return {.rollout = &config_.rollout,
            .validation = &config_.rollout,
            .frozen_copies = NeedsReference(config_.actor, config_.algorithm) ? 1 : 0,
            .mini_batch_size = config_.actor.ppo_mini_batch_size * config_.rollout.n,
            .micro_batch_size = config_.actor.ppo_micro_batch_size_per_gpu,
            .scoring_micro_batch_size = config_.ref.log_prob_micro_batch_size_per_gpu,
            .ptx_batch_size = config_.actor.ptx_coef > 0 ? config_.actor.ptx_batch_size : 0,
            .entropy = Objective()->entropy(),
            .optim = config_.actor.optim};
  }

  std::optional<data::DataConfig> ptx_data() const override {
    if (config_.actor.ptx_coef == 0) return std::nullopt;
    data::DataConfig data = config_.data;
    data.train_files = config_.actor.ptx_files;
    data.path.clear();
    data.train_weights.clear();
    data.val_files.clear();
    data.val_share = 0;
    data.phase_shares = "1";
    data.phase_index = 0;
    data.name = data::kAutoName;
    data.format = data::FormatChoice::kByName;
    data.style = data::StyleChoice::kOfAdapter;
    data.columns = {};
    data.max_length = longest_tokens();
    return data;
  }

  absl::StatusOr<Plan> MakePlan(const RunParts& parts) override {
    Plan plan{.columns = ColumnsNamed({kPrompt, kPromptText, kTruth, kSource, kResponses, kResponseMask, kResponseText,
                                       kFinished, kRolloutLogProbs, kRewards, kOldLogProbs, kAdvantages}),
              .feed =
                  [this](std::span<const data::EncodedSample> samples) {
                    return FeedPrompts(samples, config_.data.columns.keep, config_.external_reward.used());
                  },
              .stages = MakeStages(parts),
              .evaluations = {},
              .shown = {{"accuracy", "val/accuracy"}, {"reward", "critic/score/mean"}, {"kl", "actor/kl_loss"}}};
    if (NeedsReference(config_.actor, config_.algorithm)) {
      for (const ColumnSpec& column : ColumnsNamed({kRefLogProb})) plan.columns.push_back(column);
    }
    if (config_.external_reward.used()) {
      for (const ColumnSpec& column : ColumnsNamed({kMessages})) plan.columns.push_back(column);
    }
    if (parts.validation.empty()) return plan;
    plan.evaluations.push_back(MakeAnswerEvaluation(parts.policy, parts.validation, parts.tokenizer, parts.reward,
                                                    {.engine = parts.engine(exact_rollout()),
                                                     .max_new_tokens = config_.rollout.max_response_length,
                                                     .recorded = config_.trainer.log_val_generations,
                                                     .kept = config_.data.columns.keep,
                                                     .check_stop = parts.check_stop}));
    return plan;
  }

 private:
  std::shared_ptr<const trainer::Objective> Objective() const {
    return MakeActorObjective(ObjectiveOptions(config_.actor, config_.algorithm, config_.rollout));
  }

  // Evaluations are of the policy itself.
  RolloutSection exact_rollout() const {
    RolloutSection exact = config_.rollout;
    exact.int8_weights = false;
    return exact;
  }

  // Whether the rollout's log-probabilities stand for those of the policy before the step.
  bool BypassesOldLogProbs(const model::Decoder& decoder) const {
    const BypassMode mode = config_.algorithm.bypass_mode;
    const bool equal = decoder.batch_invariant() && !config_.rollout.int8_weights;
    return mode == BypassMode::kAlways || (mode == BypassMode::kWhereEqual && equal);
  }

  std::vector<std::unique_ptr<Stage>> MakeStages(const RunParts& parts) {
    const double temperature = config_.rollout.temperature;
    const ForwardOptions scoring = parts.forward(temperature, config_.ref.log_prob_micro_batch_size_per_gpu);
    const bool bypass = BypassesOldLogProbs(parts.policy.decoder);
    std::vector<std::unique_ptr<Stage>> stages;
    stages.push_back(MakeRolloutStage(
        parts.policy, parts.tokenizer, parts.engine(config_.rollout),
        {.temperature = temperature,
         .max_new_tokens = config_.rollout.max_response_length,
         .seed = SeedFor(config_, SeedPurpose::kRollout)},
        {.max_model_len = longest_tokens(), .leaves_last_position = config_.rollout.leave_last_position},
        {.log_probs = bypass ? std::vector<std::string>{kRolloutLogProbs, kOldLogProbs}
                             : std::vector<std::string>{kRolloutLogProbs}}));
    stages.push_back(MakeRewardStage(parts.reward, RewardColumns(config_)));
    if (NeedsReference(config_.actor, config_.algorithm)) {
      reference_.emplace(Policy{parts.policy.decoder.Clone()});
      stages.push_back(MakeLogProbStage("ref", kRefLogProb, *reference_, scoring));
    }
    if (!bypass) stages.push_back(MakeLogProbStage("old_log_prob", kOldLogProbs, parts.policy, scoring));
    stages.push_back(MakeAdvantageStage(config_.algorithm.advantage_options()));
    UpdateOptions update =
        parts.update(config_.actor.optim, parts.forward(temperature, config_.actor.ppo_micro_batch_size_per_gpu));
    update.mini_batch_size = config_.actor.ppo_mini_batch_size * config_.rollout.n;
    update.seed = SeedFor(config_, SeedPurpose::kMiniBatches);
    update.epochs = config_.actor.ppo_epochs;
    update.target_kl = config_.actor.target_kl;
    if (parts.ptx != nullptr) {
      update.ptx_coef = config_.actor.ptx_coef;
      update.ptx = GivenAnswers(*parts.ptx, {.batch_size = config_.actor.ptx_batch_size,
                                             .seed = SeedFor(config_, SeedPurpose::kPtx),
                                             .drop_last = false,
                                             .workers = static_cast<int>(config_.data.num_workers),
                                             .skip_bad_records = config_.data.skip_bad_records});
    }
    stages.push_back(MakeUpdateStage(parts.policy, Objective(), update));
    return stages;
  }

  GrpoConfig config_;
  std::optional<Policy> reference_;
};

}  // namespace

std::unique_ptr<Recipe> MakeGrpoRecipe() { return std::make_unique<GrpoRecipe>(); }

}  // namespace tdock::trainer
