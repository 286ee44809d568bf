// What a recipe is: its configuration, its columns, its stages in the order of a step, and how it is evaluated. The
// loop (train.h) does the rest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/rng.h"
#include "core/base/workers.h"
#include "data/adapter.h"
#include "data/data_config.h"
#include "data/encode.h"
#include "data/source.h"
#include "engine/engine.h"
#include "tdock/batch.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "trainer/loop/evaluation.h"
#include "trainer/loop/gather.h"
#include "trainer/loop/sections.h"
#include "trainer/loop/step_report.h"
#include "trainer/reward/reward.h"
#include "trainer/stages/answer_engine.h"
#include "trainer/stages/model_scores.h"
#include "trainer/stages/policy.h"
#include "trainer/stages/stage.h"
#include "trainer/stages/training_ranks.h"
#include "trainer/stages/update_stage.h"
#include "trainer/stages/weight_feed.h"

namespace tdock::trainer {

// The purposes of the seeds derived from the run's: whatever is random follows from the seed and what it is for.
enum class SeedPurpose : uint64_t {
  kModel = 1,
  kData,
  kRollout,
  kMiniBatches,
  kAdapters,
  kPtx,
  kRounding,
  kRoles,
  kEnvironment,
};

inline uint64_t SeedFor(const RunConfig& config, SeedPurpose purpose) {
  return DeriveSeed(static_cast<uint64_t>(config.seed), static_cast<uint64_t>(purpose));
}

// The longest row that samples are packed into: beyond it, attention costs more than packing saves. See MakeLayout().
inline int64_t MaxRowTokens(const model::ModelConfig& config) { return std::max<int64_t>(config.hidden_size / 3, 1); }

// The same of a row whose samples share a prompt. In batch-invariant mode attention passes over what no token near by
// sees, so that a longer row costs no more than its mask.
inline int64_t MaxSharedRowTokens(const model::Decoder& decoder) {
  constexpr int64_t kMost = 1024;
  return decoder.batch_invariant() ? std::min(2 * decoder.config().hidden_size, kMost) : 0;
}

// A model beside the policy, with a value head.
struct ModelRole {
  std::string name;             // "critic": the section of its keys, and of its folder in the run if it is trained
  const ModelSection* section;  // of the recipe: its path, and of a trained one how it is used
  bool trained = false;         // otherwise it has a value head already, and computes as the policy does
  const OptimSection* optim = nullptr;  // of a trained one
  PassSection pass = {};
  AnswerScore score = AnswerScore::kLastToken;  // of a reward model
};

// Such a model as it was loaded.
struct RoleModel {
  ModelRole role;
  Policy policy;
  // Where it reads other tokens than the policy; a trained one never does.
  std::unique_ptr<text::Tokenizer> own_tokenizer = nullptr;
  std::optional<text::ChatTemplate> own_template = {};

  std::optional<OwnTexts> Texts() const {
    if (own_tokenizer == nullptr) return std::nullopt;
    return OwnTexts{own_tokenizer.get(), own_template.has_value() ? &*own_template : nullptr};
  }
};

// What a recipe makes its stages of. Everything outlives them.
struct RunParts {
  const text::Tokenizer& tokenizer;
  Policy& policy;                            // with trainable parameters
  std::map<std::string, RoleModel>& models;  // those of Recipe::models(), by their names
  reward::Reward& reward;
  Workers& workers;
  const std::vector<int32_t>& end_tokens;
  std::span<const data::EncodedSample> validation;
  const text::ChatTemplate* chat_template;       // see RunInputs; null: there is none
  const data::Source<data::EncodedSample>* ptx;  // the samples of Recipe::ptx_data(); null: none
  int64_t total_steps;                           // for schedules
  int64_t max_row_tokens;                        // of MaxRowTokens()
  uint64_t rounding_seed;                        // of AdamWOptions
  std::function<absl::Status(int64_t)> publish;  // see UpdateOptions
  std::function<void(const std::string&)> log;   // lines of other programs. Thread-safe
  double ema_decay = 0;                          // of the average of the policy's weights; 0: none is kept
  // Where answers are sampled while the policy trains: the weights for that; null: it does not train meanwhile.
  const WeightFeed* served = nullptr;
  // The processes that train the model of a role together, "actor" or "critic"; see TrainingRanks.
  std::function<TrainingRanks(const std::string& role)> ranks = [](const std::string&) { return TrainingRanks(); };
  // For what takes long between the stages. Thread-safe.
  std::function<absl::Status()> check_stop = [] { return absl::OkStatus(); };

  ForwardOptions forward(double temperature = 1.0, const PassSection& pass = {}) const {
    return {.workers = workers,
            .temperature = temperature,
            .micro_batch_size = pass.micro_batch_size,
            .max_tokens = pass.max_tokens,
            .max_row_tokens = max_row_tokens,
            .max_shared_row_tokens = MaxSharedRowTokens(policy.decoder)};
  }
  // What `optim` says, for an update stage of the policy, or of the model of another role.
  UpdateOptions update(const OptimSection& optim, const ForwardOptions& forward,
                       const std::string& role = "actor") const {
    TrainingRanks together = ranks(role);
    together.zero = static_cast<Zero>(optim.zero_stage);
    return {.forward = forward,
            .optimizer = optim.adamw(rounding_seed),
            .lr = optim.lr,
            .lora_lr = optim.lora_lr,
            .head_lr = optim.head_lr,
            .schedule = optim.schedule(total_steps),
            .max_skipped_steps = optim.max_skipped_steps,
            .loss_scale = optim.loss_scale,
            .ema_decay = role == "actor" ? ema_decay : 0,
            .optim_key = optim.key,
            .ranks = together,
            .publish = publish};
  }
  engine::EngineOptions engine(const RolloutSection& rollout) const {
    return {.end_tokens = end_tokens,
            .max_rows = rollout.max_num_seqs,
            .workers = &workers,
            .int8_weights = rollout.int8_weights};
  }
  // What answers the prompts that `run`, which outlives it, trains on: its servers, which are looked for when they are
  // first given weights, or an engine in this process, whose tokenizer reads answers where it matters.
  std::unique_ptr<AnswerEngine> answers(const RunConfig& run, const RolloutSection& rollout,
                                        const text::Tokenizer* reads = nullptr) const {
    if (run.servers.used()) {
      // By then the run has its folder.
      return MakeLateEngine([&run, &trained = policy, ends = end_tokens] {
        return MakeServerEngine(ServerOptions(run.servers, run.trainer.run_dir, run.model.path, trained.decoder, ends));
      });
    }
    engine::EngineOptions options = engine(rollout);
    options.tokenizer = reads;
    return MakeLocalEngine(policy.decoder, options);
  }
};

struct Plan {
  std::vector<ColumnSpec> columns;
  // The columns that samples are fed as, a row for each: see feed.h.
  std::function<absl::StatusOr<Batch>(std::span<const data::EncodedSample>)> feed;
  // Whether that makes all rows of each sample's group, one after another, instead of one to be repeated.
  bool feeds_groups = false;
  // In the order of a step. The last one is what rows are kept for.
  std::vector<std::unique_ptr<Stage>> stages;
  // What of them is carried out until there are enough groups to train on; nothing: each once, on all that is fed.
  std::optional<Gathering> gathering = {};
  std::vector<std::unique_ptr<Evaluation>> evaluations;
  std::vector<ShownFigure> shown;  // on the line of progress
};

// What a step holds in memory at the same time, for estimates.
struct StepShape {
  const RolloutSection* rollout = nullptr;     // of the answers that it trains on; null: it trains on those of the data
  const RolloutSection* validation = nullptr;  // of the answers that validation asks for; null: none
  int64_t frozen_copies = 0;                   // of the policy's weights, beside them
  int64_t mini_batch_size = 0;                 // samples of an optimizer step; 0: all of the step
  PassSection pass = {};                       // with gradients, of samples
  PassSection scoring = {};                    // without
  int64_t ptx_batch_size = 0;                  // samples of ptx_data() in an optimizer step
  Entropy entropy = Entropy::kNone;            // see Objective
  OptimSection optim = {};                     // of the policy
};

// Used by one thread at a time.
class Recipe {
 public:
  virtual ~Recipe() = default;

  // What every recipe has, as part of its own configuration.
  virtual RunConfig& config() = 0;
  // Binds its keys, BindRun()'s among them.
  virtual void Bind(config::Spec& spec) = 0;

  virtual data::Phase phase() const = 0;
  // Rows that each sample of the data is fed as, one prompt group.
  virtual int64_t samples_per_prompt() const { return 1; }
  // Of the policy.
  virtual model::Head head() const { return model::Head::kTokens; }
  // Of the longest sequence, and the keys that say so.
  virtual int64_t longest_tokens() const = 0;
  virtual std::string longest_keys() const = 0;
  virtual StepShape shape() const = 0;
  // The models beside the policy.
  virtual std::vector<ModelRole> models() const { return {}; }
  // A second data set, of answers to learn beside the first; nothing: there is none.
  virtual std::optional<data::DataConfig> ptx_data() const { return std::nullopt; }

  // Called once. What the plan refers to beside `parts` is the recipe's, which outlives it. May throw.
  virtual absl::StatusOr<Plan> MakePlan(const RunParts& parts) = 0;
};

}  // namespace tdock::trainer
