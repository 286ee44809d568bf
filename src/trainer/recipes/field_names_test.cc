#include "trainer/recipes/field_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/testing/fails.h"

namespace tdock::trainer {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The keys of a recipe.
struct SomeKeys {
  int64_t seed = 1, batch = 1, prompt_length = 1, response_length = 1, lora_rank = 0;
  int64_t mini = 1, micro = 1, warmup_steps = 0, n = 1, max_num_seqs = 1, ref_micro = 1, epochs = 1, steps = 1;
  int64_t zero_stage = 0, save_freq = 1, test_freq = 1, generations = 0, tokens = 0, ref_tokens = 0;
  double lr = 1, beta1 = 0.5, beta2 = 0.5, weight_decay = 0, clip_grad = 1, min_lr_ratio = 0;
  double clip_low = 0.1, clip_high = 0.1, kl_coef = 1, temperature = 0.5, lora_alpha = 1;
  bool shuffle = false;
  std::string device = "cpu", path, target_modules = "none", run_dir, prompt_column;
  std::string recompute = "nothing", schedule = "linear", kl_type = "k2", estimator = "grpo";
  std::vector<std::string> train_files, val_files, functions;
};

void BindNamed(config::Spec& spec, const std::string& key, std::string* field, const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, std::string>> choices;
  for (const std::string& name : names) choices.emplace_back(name, name);
  spec.Choice(key, field, choices, "");
}

config::Spec SpecOfKeys(SomeKeys& c) {
  config::Spec spec;
  const std::pair<const char*, int64_t*> integers[] = {
      {"seed", &c.seed},
      {"data.train_batch_size", &c.batch},
      {"data.max_prompt_length", &c.prompt_length},
      {"data.max_response_length", &c.response_length},
      {"model.lora_rank", &c.lora_rank},
      {"actor.ppo_mini_batch_size", &c.mini},
      {"actor.ppo_micro_batch_size_per_gpu", &c.micro},
      {"actor.ppo_max_token_len_per_gpu", &c.tokens},
      {"actor.optim.lr_warmup_steps", &c.warmup_steps},
      {"actor.zero_stage", &c.zero_stage},
      {"rollout.n", &c.n},
      {"rollout.max_num_seqs", &c.max_num_seqs},
      {"ref.log_prob_micro_batch_size_per_gpu", &c.ref_micro},
      {"ref.log_prob_max_token_len_per_gpu", &c.ref_tokens},
      {"trainer.total_epochs", &c.epochs},
      {"trainer.total_training_steps", &c.steps},
      {"trainer.save_freq", &c.save_freq},
      {"trainer.test_freq", &c.test_freq},
      {"trainer.log_val_generations", &c.generations},
  };
  for (const auto& [key, field] : integers) spec.Int(key, field, "");
  const std::pair<const char*, double*> numbers[] = {
      {"model.lora_alpha", &c.lora_alpha},
      {"actor.optim.lr", &c.lr},
      {"actor.optim.beta1", &c.beta1},
      {"actor.optim.beta2", &c.beta2},
      {"actor.optim.weight_decay", &c.weight_decay},
      {"actor.optim.clip_grad", &c.clip_grad},
      {"actor.optim.min_lr_ratio", &c.min_lr_ratio},
      {"actor.clip_ratio_low", &c.clip_low},
      {"actor.clip_ratio_high", &c.clip_high},
      {"actor.kl_loss_coef", &c.kl_coef},
      {"rollout.temperature", &c.temperature},
  };
  for (const auto& [key, field] : numbers) spec.Float(key, field, "");
  spec.Bool("data.shuffle", &c.shuffle, "");
  spec.String("device", &c.device, "");
  spec.String("model.path", &c.path, "");
  spec.String("model.target_modules", &c.target_modules, "");
  spec.String("trainer.run_dir", &c.run_dir, "");
  spec.String("data.columns.prompt", &c.prompt_column, "");
  spec.Strings("reward.function", &c.functions, "");
  spec.Strings("data.train_files", &c.train_files, "");
  spec.Strings("data.val_files", &c.val_files, "");
  BindNamed(spec, "model.recompute", &c.recompute, {"nothing", "layers"});
  BindNamed(spec, "actor.optim.lr_scheduler_type", &c.schedule, {"constant", "linear", "cosine"});
  BindNamed(spec, "actor.kl_loss_type", &c.kl_type, {"k1", "abs", "k2", "k3"});
  BindNamed(spec, "algorithm.adv_estimator", &c.estimator, {"grpo", "rloo"});
  BindFieldNames(spec);
  return spec;
}

struct LoadedKeys {
  SomeKeys recipe;
  std::vector<std::string> violations;
  std::vector<std::string> notes;
};

LoadedKeys LoadKeys(absl::string_view yaml, bool lenient, const std::vector<std::string>& overrides = {}) {
  LoadedKeys loaded;
  const config::Spec spec = SpecOfKeys(loaded.recipe);
  const absl::Status status =
      config::Load(spec, yaml, "verl.yaml", overrides,
                   {.limits = {.max_reported = 1000}, .lenient = lenient, .note = [&](const std::string& line) {
                      loaded.notes.push_back(line);
                    }});
  if (!status.ok()) loaded.violations = absl::StrSplit(status.message(), '\n');
  return loaded;
}

// In the form of verl's trainer, resolved by Hydra into one file.
constexpr absl::string_view kVerl = R"(
actor_rollout_ref:
  actor:
    _target_: verl.workers.config.FSDPActorConfig
    optim:
      _target_: verl.workers.config.FSDPOptimizerConfig
      optimizer: AdamW
      optimizer_impl: torch.optim
      lr: 1.0e-06
      lr_warmup_steps_ratio: 0.0
      total_training_steps: -1
      weight_decay: 0.1
      lr_warmup_steps: -1
      betas:
      - 0.9
      - 0.95
      clip_grad: 2.0
      min_lr_ratio: 0.0
      lr_scheduler_type: constant
      warmup_style: null
      override_optimizer_config: null
    fsdp_config:
      wrap_policy: {min_num_params: 0}
      param_offload: false
      fsdp_size: -1
    rollout_n: ${oc.select:actor_rollout_ref.rollout.n,1}
    strategy: fsdp
    ppo_mini_batch_size: 256
    ppo_micro_batch_size: null
    ppo_micro_batch_size_per_gpu: 40
    use_dynamic_bsz: false
    ppo_max_token_len_per_gpu: 16384
    clip_ratio: 0.2
    clip_ratio_high: 0.28
    policy_loss: {loss_mode: vanilla, ppo_kl_coef: 0.1}
    loss_agg_mode: token-mean
    loss_scale_factor: null
    entropy_coeff: 0
    use_kl_loss: true
    grad_clip: 2.0
    kl_loss_coef: 0.001
    kl_loss_type: low_var_kl
    ppo_epochs: 1
    checkpoint:
      save_contents: [model, optimizer, extra]
      load_contents: ${.save_contents}
    profiler:
      tool: ${oc.select:global_profiler.tool,null}
      ranks: []
  ref:
    strategy: ${actor_rollout_ref.actor.strategy}
    log_prob_micro_batch_size_per_gpu: 80
    log_prob_max_token_len_per_gpu: ${oc.select:actor_rollout_ref.actor.ppo_max_token_len_per_gpu,16384}
  rollout:
    name: vllm
    temperature: 1.0
    top_k: -1
    top_p: 1
    prompt_length: ${oc.select:data.max_prompt_length,512}
    gpu_memory_utilization: 0.5
    tensor_model_parallel_size: 2
    pipeline_model_parallel_size: 1
    max_num_seqs: ${actor_rollout_ref.actor.ppo_mini_batch_size}
    'n': 5
    val_kwargs: {top_k: -1, do_sample: false}
  model:
    path: ~/models/qwen
    override_config: {}
    enable_gradient_checkpointing: true
    use_remove_padding: true
    lora_rank: 8
    lora_alpha: 16
    target_modules: all-linear
  hybrid_engine: true
data:
  tokenizer: null
  train_files: ~/data/gsm8k/train.parquet
  val_files: [a.parquet, b.parquet]
  prompt_key: prompt
  max_prompt_length: 512
  max_response_length: 1024
  train_batch_size: 1024
  val_batch_size: null
  shuffle: true
  seed: null
critic:
  optim: {lr: 1.0e-05}
  ppo_mini_batch_size: ${oc.select:actor_rollout_ref.actor.ppo_mini_batch_size,256}
reward_model:
  enable: false
  nnodes: 0
custom_reward_function:
  path: null
  name: compute_score
algorithm:
  gamma: 1.0
  adv_estimator: grpo
  norm_adv_by_std_in_grpo: true
  use_kl_in_reward: false
  kl_ctrl: {type: fixed, kl_coef: 0.001}
trainer:
  total_epochs: 15
  total_training_steps: null
  project_name: examples
  experiment_name: gsm8k
  logger: [console, wandb]
  nnodes: 1
  n_gpus_per_node: 8
  save_freq: 20
  test_freq: 5
  critic_warmup: 0
  default_local_dir: checkpoints/${trainer.project_name}/${trainer.experiment_name}
  device: cuda
ray_kwargs:
  ray_init: {num_cpus: null}
)";

// What has no meaning here, in the file's order.
const std::vector<std::string>& VerlsOwn() {
  static const auto& names = *new std::vector<std::string>{
      "actor_rollout_ref.actor._target_",
      "actor_rollout_ref.actor.optim._target_",
      "actor_rollout_ref.actor.fsdp_config",
      "actor_rollout_ref.actor.rollout_n",
      "actor_rollout_ref.actor.strategy",
      "actor_rollout_ref.actor.policy_loss",
      "actor_rollout_ref.actor.checkpoint",
      "actor_rollout_ref.actor.profiler",
      "actor_rollout_ref.ref.strategy",
      "actor_rollout_ref.rollout.name",
      "actor_rollout_ref.rollout.prompt_length",
      "actor_rollout_ref.rollout.gpu_memory_utilization",
      "actor_rollout_ref.rollout.tensor_model_parallel_size",
      "actor_rollout_ref.rollout.val_kwargs",
      "critic",
      "reward_model.nnodes",
      "algorithm.gamma",
      "algorithm.kl_ctrl",
      "trainer.project_name",
      "trainer.experiment_name",
      "trainer.logger",
      "trainer.n_gpus_per_node",
  };
  return names;
}

// The keys that the lines are about.
std::vector<std::string> KeysOf(const std::vector<std::string>& lines) {
  std::vector<std::string> keys;
  for (const std::string& line : lines) {
    const std::vector<std::string> parts = absl::StrSplit(line, ": ");
    keys.push_back(parts.size() > 1 ? parts[1] : line);
  }
  return keys;
}

TEST(FieldNames, AFileOfVerlLoadsLenientlyWithANoteForEachReason) {
  const LoadedKeys loaded = LoadKeys(kVerl, /*lenient=*/true);
  EXPECT_THAT(loaded.violations, IsEmpty());
  EXPECT_THAT(KeysOf(loaded.notes), testing::IsSubsetOf(VerlsOwn()));
  EXPECT_LT(loaded.notes.size(), VerlsOwn().size());
  for (const std::string& note : loaded.notes) EXPECT_THAT(note, HasSubstr(": skipped: "));

  const SomeKeys& c = loaded.recipe;
  EXPECT_EQ(c.lr, 1e-6);
  EXPECT_EQ(c.weight_decay, 0.1);
  EXPECT_EQ(c.beta1, 0.9);
  EXPECT_EQ(c.beta2, 0.95);
  EXPECT_EQ(c.clip_grad, 2.0);
  EXPECT_EQ(c.warmup_steps, 0);
  EXPECT_EQ(c.schedule, "constant");
  EXPECT_EQ(c.mini, 256);
  EXPECT_EQ(c.micro, 40);
  EXPECT_EQ(c.tokens, 16384);
  EXPECT_EQ(c.ref_tokens, 16384);
  EXPECT_EQ(c.clip_low, 0.2);
  EXPECT_EQ(c.clip_high, 0.28);
  EXPECT_EQ(c.kl_coef, 0.001);
  EXPECT_EQ(c.kl_type, "k3");
  EXPECT_EQ(c.ref_micro, 80);
  EXPECT_EQ(c.n, 5);
  EXPECT_EQ(c.max_num_seqs, 256);
  EXPECT_EQ(c.path, "~/models/qwen");
  EXPECT_EQ(c.recompute, "layers");
  EXPECT_EQ(c.lora_rank, 8);
  EXPECT_EQ(c.target_modules, "");
  EXPECT_THAT(c.train_files, ElementsAre("~/data/gsm8k/train.parquet"));
  EXPECT_THAT(c.val_files, ElementsAre("a.parquet", "b.parquet"));
  EXPECT_EQ(c.response_length, 1024);
  EXPECT_TRUE(c.shuffle);
  EXPECT_EQ(c.seed, 1) << "null leaves the default";
  EXPECT_EQ(c.epochs, 15);
  EXPECT_EQ(c.run_dir, "checkpoints/examples/gsm8k");
  EXPECT_EQ(c.device, "cuda");
}

TEST(FieldNames, AFileOfVerlIsOtherwiseRefusedWithTheReasonForEachKeyWithoutMeaning) {
  const LoadedKeys loaded = LoadKeys(kVerl, /*lenient=*/false);
  EXPECT_THAT(KeysOf(loaded.violations), testing::ElementsAreArray(VerlsOwn()));
  EXPECT_THAT(loaded.violations, Contains(Mentions({"verl.yaml:108: trainer.n_gpus_per_node: ", "--lenient"})));
  EXPECT_THAT(loaded.notes, IsEmpty());
}

TEST(FieldNames, VerlsCommandLinesAreUnderstood) {
  const LoadedKeys loaded =
      LoadKeys("", /*lenient=*/true,
               {"data.train_files=['a.parquet','b.parquet']", "+actor_rollout_ref.actor.optim.lr=1e-5",
                "actor_rollout_ref.model.enable_gradient_checkpointing=True", "actor_rollout_ref.rollout.n=16",
                "trainer.logger=[\"console\",\"wandb\"]", "actor_rollout_ref.actor.use_kl_loss=True",
                "actor_rollout_ref.actor.clip_ratio=0.3", "algorithm.use_kl_in_reward=False"});
  EXPECT_THAT(loaded.violations, IsEmpty());
  EXPECT_THAT(KeysOf(loaded.notes), ElementsAre("trainer.logger"));
  EXPECT_THAT(loaded.recipe.train_files, ElementsAre("a.parquet", "b.parquet"));
  EXPECT_EQ(loaded.recipe.lr, 1e-5);
  EXPECT_EQ(loaded.recipe.n, 16);
  EXPECT_EQ(loaded.recipe.recompute, "layers");
  EXPECT_EQ(loaded.recipe.clip_high, 0.3);
}

TEST(FieldNames, TheStageOfZeroHasDeepSpeedsNames) {
  for (const char* name : {"actor_zero_stage", "zero_optimization.stage"}) {
    const LoadedKeys loaded = LoadKeys("", /*lenient=*/false, {absl::StrCat(name, "=2")});
    EXPECT_THAT(loaded.violations, IsEmpty());
    EXPECT_EQ(loaded.recipe.zero_stage, 2) << name;
  }
}

TEST(FieldNames, WhatWouldChangeResultsIsNeverSkipped) {
  const std::vector<std::string> overrides = {
      "actor_rollout_ref.actor.ppo_epochs=2",  "actor_rollout_ref.rollout.top_p=0.9",
      "algorithm.use_kl_in_reward=True",       "reward_manager.module.path=reward.py",
      "rl_config.partial_rollout_max_split=2",
  };
  const LoadedKeys loaded = LoadKeys("", /*lenient=*/true, overrides);
  ASSERT_EQ(loaded.violations.size(), overrides.size());
  for (size_t i = 0; i < overrides.size(); ++i) {
    EXPECT_THAT(loaded.violations[i], HasSubstr(overrides[i].substr(0, overrides[i].find('='))));
  }
  EXPECT_THAT(loaded.violations[0],
              HasSubstr("command line: actor_rollout_ref.actor.ppo_epochs: \"2\" given, expected 1: "));
}

TEST(FieldNames, AFileOfMindSpeedLoadsLeniently) {
  const LoadedKeys loaded = LoadKeys(R"(
defaults:
  - model:
      - qwen25_7b
megatron_training:
  model: qwen25_7b
  use_flash_attn: true
  tokenizer_name_or_path: ./Qwen
  global_batch_size: 32
  train_iters: 1000
  save_interval: 200
  no_shuffle: false
actor_config:
  micro_batch_size: 2
  tensor_model_parallel_size: 4
  lr: 1e-6
  lr_decay_style: constant
  lr_warmup_fraction: 0.0
  adam_beta2: 0.95
rl_config:
  guarantee_order: false
  ref_forward_micro_batch_size: 4
  adv_estimator: group_norm
  kl_penalty: low_var_kl
  init_kl_coef: 0.01
  mini_batch_size: 16
  max_prompt_length: 2048
  clip_ratio: 0.25
  entropy_coeff: 0.0
  n_samples_per_prompt: 8
  verifier_function: ["base_acc"]
  actor_resource: {num_npus: 16}
generate_config:
  infer_tensor_parallel_size: 4
  max_num_seqs: 1024
  sampling_config: {max_tokens: 2048, top_p: 1.0, top_k: -1, temperature: 0.8}
)",
                                     /*lenient=*/true);
  EXPECT_THAT(loaded.violations, IsEmpty());
  EXPECT_THAT(absl::StrJoin(loaded.notes, "\n"),
              Mentions({"defaults: ", "megatron_training.model", "megatron_training.use_flash_attn",
                        "megatron_training.tokenizer_name_or_path", "actor_config.tensor_model_parallel_size",
                        "rl_config.guarantee_order", "rl_config.verifier_function", "rl_config.actor_resource",
                        "generate_config.infer_tensor_parallel_size"}));
  const SomeKeys& c = loaded.recipe;
  EXPECT_EQ(c.batch, 32);
  EXPECT_EQ(c.steps, 1000);
  EXPECT_EQ(c.save_freq, 200);
  EXPECT_EQ(c.micro, 2);
  EXPECT_EQ(c.lr, 1e-6);
  EXPECT_EQ(c.beta2, 0.95);
  EXPECT_EQ(c.ref_micro, 4);
  EXPECT_EQ(c.estimator, "grpo");
  EXPECT_EQ(c.kl_type, "k3");
  EXPECT_EQ(c.kl_coef, 0.01);
  EXPECT_EQ(c.mini, 16);
  EXPECT_EQ(c.prompt_length, 2048);
  EXPECT_EQ(c.clip_low, 0.25);
  EXPECT_EQ(c.n, 8);
  EXPECT_EQ(c.max_num_seqs, 1024);
  EXPECT_EQ(c.response_length, 2048);
  EXPECT_EQ(c.temperature, 0.8);
}

TEST(FieldNames, WhatMindSpeedsStagesTakeIsWhatOursTake) {
  int64_t split = 1, rollout = 0, log_probs = 0, ref = 0, reward = 0, values = 0;
  bool in_order = false, balanced = false;
  config::Spec spec;
  spec.Int("rollout.partial_rollout_max_split", &split, "");
  spec.Int("trainer.dispatch_size.rollout", &rollout, "");
  spec.Int("trainer.dispatch_size.old_log_prob", &log_probs, "");
  spec.Int("trainer.dispatch_size.ref", &ref, "");
  spec.Int("trainer.dispatch_size.reward", &reward, "");
  spec.Int("trainer.dispatch_size.values", &values, "");
  spec.Bool("trainer.guarantee_order", &in_order, "");
  spec.Bool("trainer.balance_batch", &balanced, "");
  BindFieldNames(spec);
  EXPECT_EQ(config::Load(spec, R"(
rl_config:
  partial_rollout_max_split: 4
  guarantee_order: true
  use_dp_batch_balance: true
  actor_rollout_dispatch_size: 64
  actor_logprob_dispatch_size: 32
  ref_dispatch_size: 16
  reward_dispatch_size: 8
  critic_value_dispatch_size: null
)",
                         "mindspeed.yaml", {}, {}),
            absl::OkStatus());
  EXPECT_EQ(split, 4);
  EXPECT_TRUE(in_order);
  EXPECT_TRUE(balanced);
  EXPECT_EQ(rollout, 64);
  EXPECT_EQ(log_probs, 32);
  EXPECT_EQ(ref, 16);
  EXPECT_EQ(reward, 8);
  EXPECT_EQ(values, 0) << "null leaves the default";
}

TEST(FieldNames, TheBatchOfVerlIsBalancedWhereStagesTakeAPartOfIt) {
  bool balanced = false;
  config::Spec spec;
  spec.Bool("trainer.balance_batch", &balanced, "");
  BindFieldNames(spec);
  EXPECT_EQ(config::Load(spec, "trainer: {balance_batch: True}", "verl.yaml", {}, {}), absl::OkStatus());
  EXPECT_TRUE(balanced);

  const LoadedKeys without = LoadKeys("trainer: {balance_batch: True}", /*lenient=*/true);
  EXPECT_THAT(without.notes, ElementsAre(Mentions({"trainer.balance_batch: "})));
}

TEST(FieldNames, OfKeysThatARecipeDoesNotHaveAreLeftOut) {
  int64_t n = 1;
  config::Spec spec;
  spec.Int("rollout.n", &n, "");
  BindFieldNames(spec);
  EXPECT_EQ(config::Load(spec, "", "run.yaml", std::vector<std::string>{"rl_config.n_samples_per_prompt=4"}),
            absl::OkStatus());
  EXPECT_EQ(n, 4);
  EXPECT_THAT(config::Load(spec, "rl_config: {mini_batch_size: 16}\nalgorithm.adv_estimator: gae\n", "run.yaml", {}),
              Fails(absl::StatusCode::kInvalidArgument,
                    {"run.yaml:1: rl_config.mini_batch_size: ", "--lenient\n",
                     "run.yaml:2: algorithm.adv_estimator: \"gae\" given, expected grpo: "}));
}

}  // namespace
}  // namespace tdock::trainer
