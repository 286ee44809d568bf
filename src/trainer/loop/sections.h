// Sections of a run's configuration, which recipes compose.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/config/spec.h"
#include "data/data_config.h"
#include "engine/sampling/sampling_params.h"
#include "model/decoder/decoder.h"
#include "tdock/options.h"
#include "trainer/algo/lr_schedule.h"
#include "trainer/environment/environment_config.h"
#include "trainer/loop/model_options.h"
#include "trainer/loop/rollout_servers_section.h"
#include "trainer/reward/external/external_config.h"
#include "trainer/reward/reward_config.h"
#include "trainer/stages/loss_scale.h"
#include "trainer/stages/optimizer.h"

namespace tdock::trainer {

// Limits beyond what memory can hold, and small enough that products of two do not overflow.
inline constexpr int64_t kMaxBatch = int64_t{1} << 20;

// PREFIX.optim, and PREFIX.zero_stage
struct OptimSection {
  std::string key;  // of the section, such as "actor.optim": BindOptim() sets it
  double lr = 1e-5;
  double lora_lr = 0;
  double head_lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double weight_decay = 0.01;
  double clip_grad = 1.0;
  algo::LrSchedule lr_schedule;  // total_steps is not of the configuration
  MomentType moment_dtype = MomentType::kFloat32;
  bool offload = false;
  int64_t max_skipped_steps = 3;
  LossScaleOptions loss_scale;
  std::string zero_key;  // "actor.zero_stage": BindOptim() sets it
  int64_t zero_stage = 0;

  AdamWOptions adamw(uint64_t rounding_seed) const {
    return {.beta1 = beta1,
            .beta2 = beta2,
            .weight_decay = weight_decay,
            .clip_grad = clip_grad,
            .moments = moment_dtype,
            .offload = offload,
            .seed = rounding_seed};
  }
  algo::LrSchedule schedule(int64_t total_steps) const {
    algo::LrSchedule schedule = lr_schedule;
    schedule.total_steps = total_steps;
    return schedule;
  }
};

// model
struct ModelSection : ModelOptions {
  std::string path;
  std::string kernels = "auto";
  // Of a model with random weights, where there is no path.
  std::string alphabet;
  int64_t hidden_size = 96;
  int64_t intermediate_size = 256;
  int64_t num_hidden_layers = 4;
  int64_t num_attention_heads = 4;
  int64_t num_key_value_heads = 4;
  int64_t max_position_embeddings = 64;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool tie_word_embeddings = true;
};
void BindModel(config::Spec& spec, ModelSection& section);

// rollout, and data.max_response_length
struct RolloutSection {
  int64_t n = 8;
  double temperature = 1.0;
  int64_t max_num_seqs = 4096;
  int64_t max_response_length = 256;
  int64_t min_new_tokens = 0;
  bool ignore_eos = false;
  bool leave_last_position = false;
  int64_t min_response_tokens = 0;
  bool int8_weights = false;
  int64_t probe_prompts = 8;

  // How the answers that are trained on are sampled.
  engine::SamplingParams sampling(uint64_t seed) const {
    return {.temperature = temperature,
            .max_new_tokens = max_response_length,
            .seed = seed,
            .min_new_tokens = min_new_tokens,
            .ignore_eos = ignore_eos};
  }
};
// `samples` adds rollout.n, rollout.temperature, rollout.min_new_tokens, rollout.ignore_eos,
// rollout.leave_last_position, rollout.quantization and rollout.probe_prompts: for recipes that train on what they
// generate.
void BindRollout(config::Spec& spec, RolloutSection& section, bool samples);

// Limits of a pass through a model, as ForwardOptions has them.
struct PassSection {
  int64_t micro_batch_size = 0;  // samples, or pairs of them; 0: as many as max_tokens allows
  int64_t max_tokens = 0;

  PassSection of_pairs() const { return {.micro_batch_size = 2 * micro_batch_size, .max_tokens = max_tokens}; }
};
// `micro_key`, which counts `samples` ("Samples"), and `tokens_key`.
void BindPass(config::Spec& spec, const std::string& micro_key, const std::string& samples,
              const std::string& tokens_key, PassSection& section);

// trainer.serve, trainer.dock, and what belongs to them: how other processes take part in a run.
struct DockSection {
  std::string serve;    // where to serve the run's own dock: "unix", unix:/PATH or HOST:PORT; empty: nowhere
  std::string address;  // of a dock that is served elsewhere; empty: the run has its own
  std::string partition = "train";
  std::string token_file, tls_ca, tls_cert, tls_key;  // as those of `tdock dock`; empty: none
  std::vector<std::string> external_stages;
  double external_timeout = 600;  // seconds

  // Whether other processes have the dock, too.
  bool shared() const { return !serve.empty() || !address.empty(); }
};
void BindDock(config::Spec& spec, DockSection& section);

// trainer.executor, and what belongs to it: how stages are carried out.
struct ExecutorSection {
  enum class Kind { kAuto, kSequential, kConcurrent };
  Kind kind = Kind::kAuto;
  double stage_timeout = 1800;  // seconds without a sign of progress
  int64_t stage_retries = 3;    // of a stage that fails, in a row
  // trainer.dispatch_size: the most samples that a stage takes at a time, by the names of stages; 0: all.
  std::map<std::string, int64_t> dispatch_sizes = {{"rollout", 0}, {"reward", 0},       {"baseline", 0},
                                                   {"ref", 0},     {"old_log_prob", 0}, {"values", 0}};
  bool guarantee_order = false;
  bool balance_batch = false;

  int64_t dispatch_size(const std::string& stage) const {
    const auto found = dispatch_sizes.find(stage);
    return found == dispatch_sizes.end() ? 0 : found->second;
  }
};

// resources: of runs of several processes.
struct ResourcesSection {
  // The processes of each machine that are a pool: "train=1", "rollout=2+2". Empty: all of them, as "global_pool".
  std::vector<std::string> pools;
  // The pool that has a role: "rollout=rollout". A role that is not named is of the first pool.
  std::vector<std::string> roles;
  double join_timeout = 300;        // seconds
  double silence_timeout = 30;      // seconds
  double collective_timeout = 600;  // seconds
  bool log_calls = false;
};
void BindResources(config::Spec& spec, ResourcesSection& section);
// The names that may have a pool.
const std::vector<std::string>& RolesOfProcesses();

// async_training
struct AsyncSection {
  enum class Weights { kInFlight, kWait };
  int64_t steps_ahead = 0;
  int64_t max_version_lag = -1;  // -1: no limit
  Stale stale = Stale::kSendBack;
  Weights weights = Weights::kInFlight;
  int64_t partial_rollout_max_split = 1;  // rollout.partial_rollout_max_split
};

// trainer
struct TrainerSection {
  int64_t total_epochs = 0;
  int64_t total_training_steps = 0;
  double ema_decay = 0;
  int64_t test_freq = 10;
  bool val_before_train = true;
  bool val_only = false;
  int64_t val_max_samples = 1024;
  std::vector<std::string> evaluations;  // their names: see BindEvaluations()
  int64_t log_val_generations = 16;
  std::string stop_when;
  std::string run_dir;
  std::string save_freq = "30min";  // see ParseSaveFreq()
  int64_t max_checkpoints_to_keep = 2;
  std::string best_metric;
  bool best_is_least = false;
  std::string resume_mode = "auto";  // "auto", "disable", "resume_path", or the folder of a checkpoint
  std::string resume_from_path;
  double max_minutes = 0;
  double peak_flops = 0;
  std::vector<std::string> profile_steps;  // numbers
  ExecutorSection executor;
  DockSection dock;
};
void BindTrainer(config::Spec& spec, TrainerSection& section);

// algorithm.filter_groups, and data.gen_batch_size: see gather.h.
struct FilterGroupsSection {
  bool enable = false;
  bool with_penalty = false;  // what scores are compared: those of the reward, or with what is taken off for length
  int64_t max_num_gen_batches = 10;
  int64_t gen_batch_size = 0;  // 0: data.train_batch_size
};

// trainer.evaluations: some of `names`.
void BindEvaluations(config::Spec& spec, TrainerSection& section, const std::vector<std::string>& names);
// Whether one of them is that.
bool Evaluates(const TrainerSection& section, absl::string_view name);

// What a file for verl or MindSpeed-RL says that means nothing to a run here, but is checked with the rest of its
// numbers (trainer/preflight): the values by their keys. 0, false and empty: not given.
struct ForeignValues {
  std::map<std::string, int64_t> integers;
  std::map<std::string, double> numbers;
  std::map<std::string, bool> flags;
  std::map<std::string, std::vector<std::string>> lists;
};

// What every recipe has.
struct RunConfig {
  std::string recipe;
  int64_t seed = 1;
  std::string device = "cpu";
  int64_t threads = 0;
  int64_t intra_op_threads = 1;
  ModelSection model;
  data::DataConfig data;
  reward::RewardConfig reward;
  reward::ExternalRewardConfig external_reward;
  environment::EnvironmentConfig environment;  // of recipes that bind it
  TrainerSection trainer;
  FilterGroupsSection filter_groups;  // of recipes that bind it
  AsyncSection async;                 // likewise
  RolloutServersSection servers;      // likewise
  ResourcesSection resources;
  ForeignValues foreign;  // no keys of a run: LoadRecipe() fills it
};
void BindRun(config::Spec& spec, RunConfig& config);
// Beside BindRun()'s keys, for recipes whose plan can gather.
void BindFilterGroups(config::Spec& spec, RunConfig& config);

// Beside BindRun()'s keys, for recipes that answer prompts: the section `async_training`, and
// rollout.partial_rollout_max_split.
// `versions_per_step`: optimizer steps, of which each makes a version of the weights.
void BindAsync(config::Spec& spec, RunConfig& config, const std::function<int64_t()>& versions_per_step);
// Whether steps take what is ready of the prompts on the dock, of which there are then more than a step has.
inline bool Streams(const RunConfig& config) {
  return config.async.steps_ahead > 0 || config.async.partial_rollout_max_split > 1;
}
// Whether the stages of a step are carried out at the same time.
inline bool RunsTogether(const RunConfig& config) {
  if (config.trainer.executor.kind != ExecutorSection::Kind::kAuto) {
    return config.trainer.executor.kind == ExecutorSection::Kind::kConcurrent;
  }
  return config.async.steps_ahead > 0;
}

// Samples that are drawn from the data together: a step's, or those of a round of gathering.
int64_t DrawnAtOnce(const RunConfig& config);

// The columns of a sample that its reward reads beside those that all have: those that are kept, and kMessages. None
// where rules alone score.
std::vector<std::string> RewardColumns(const RunConfig& config);
// PREFIX.lr_warmup_steps, lr_scheduler_type, min_lr_ratio and lr_scheduler_kwargs.
void BindSchedule(config::Spec& spec, const std::string& prefix, algo::LrSchedule& schedule);
// Of the model with these options; null: the policy. `prefix` ends with "optim".
void BindOptim(config::Spec& spec, const std::string& prefix, const RunConfig& run, OptimSection& section,
               const ModelOptions* of = nullptr);

// InvalidArgument where a value of the section, which is of a run with this model, means nothing for it.
absl::Status CheckOptim(const OptimSection& section, const model::Decoder& decoder);

}  // namespace tdock::trainer
