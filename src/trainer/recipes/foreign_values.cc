// The numbers of verl and MindSpeed-RL that mean nothing to a run here, but are checked with its own.
#include <cstdint>

#include "trainer/recipes/field_names.h"

namespace tdock::trainer {
namespace {

// How a section of verl's and one of MindSpeed-RL's divide a model.
constexpr const char* kDivisions[] = {
    "actor.megatron.tensor_model_parallel_size",    "actor.megatron.pipeline_model_parallel_size",
    "actor.megatron.context_parallel_size",         "actor.ulysses_sequence_parallel_size",
    "ref.megatron.tensor_model_parallel_size",      "ref.megatron.pipeline_model_parallel_size",
    "ref.megatron.context_parallel_size",           "ref.ulysses_sequence_parallel_size",
    "critic.megatron.tensor_model_parallel_size",   "critic.megatron.pipeline_model_parallel_size",
    "critic.megatron.context_parallel_size",        "critic.ulysses_sequence_parallel_size",
    "rollout.tensor_model_parallel_size",           "rollout.pipeline_model_parallel_size",
    "actor_config.tensor_model_parallel_size",      "actor_config.pipeline_model_parallel_size",
    "actor_config.context_parallel_size",           "ref_config.tensor_model_parallel_size",
    "ref_config.pipeline_model_parallel_size",      "ref_config.context_parallel_size",
    "critic_config.tensor_model_parallel_size",     "critic_config.pipeline_model_parallel_size",
    "critic_config.context_parallel_size",          "reward_config.tensor_model_parallel_size",
    "reward_config.pipeline_model_parallel_size",   "reward_config.context_parallel_size",
    "generate_config.infer_tensor_parallel_size",   "generate_config.infer_pipeline_parallel_size",
    "megatron_training.tensor_model_parallel_size", "megatron_training.pipeline_model_parallel_size",
    "megatron_training.context_parallel_size",
};

constexpr const char* kDevices[] = {
    "trainer.n_gpus_per_node",
    "trainer.nnodes",
    "rl_config.actor_resource.num_npus",
    "rl_config.reference_resource.num_npus",
    "rl_config.reward_resource.num_npus",
    "rl_config.critic_resource.num_npus",
};

constexpr const char* kBatches[] = {
    "data.gen_batch_size",
    "actor.ppo_micro_batch_size",
    "critic.ppo_micro_batch_size",
    "ref.log_prob_micro_batch_size",
    "rollout.log_prob_micro_batch_size",
    "rollout.log_prob_micro_batch_size_per_gpu",
    "rl_config.actor_forward_micro_batch_size",
    "rl_config.actor_update_dispatch_size",
    "rl_config.adv_dispatch_size",
    "rl_config.kl_dispatch_size",
    "rl_config.critic_update_dispatch_size",
    "rl_config.dynamic_sampling_dispatch_size",
};

constexpr const char* kExperts[] = {
    "actor.megatron.override_transformer_config.num_moe_experts",
    "actor.megatron.override_transformer_config.moe_router_num_groups",
    "actor_config.num_moe_experts",
    "actor_config.moe_router_num_groups",
    "megatron_training.num_moe_experts",
    "megatron_training.moe_router_num_groups",
    "model.override_config.num_moe_experts",
    "model.override_config.moe_router_num_groups",
};

// In tokens.
constexpr const char* kLengths[] = {
    "actor.ppo_max_token_len_per_gpu",
    "critic.ppo_max_token_len_per_gpu",
    "ref.log_prob_max_token_len_per_gpu",
    "rollout.log_prob_max_token_len_per_gpu",
    "rollout.max_model_len",
    "rollout.context_length",
    "generate_config.max_model_len",
    "megatron_training.seq_length",
    "actor_config.seq_length",
    "reward_model.overlong_buffer.len",
    "rl_config.overlong_buffer",
};

constexpr const char* kFlags[] = {
    "actor.use_dynamic_bsz",
    "critic.use_dynamic_bsz",
    "ref.log_prob_use_dynamic_bsz",
    "rollout.log_prob_use_dynamic_bsz",
    "rollout.val_kwargs.do_sample",
    "reward_model.overlong_buffer.enable",
    "rl_config.overlong_buffer_enable",
    "rl_config.filter_groups_enable",
};

constexpr const char* kLists[] = {"rl_config.verifier_function", "rl_config.verifier_weight"};

// `at_most` keeps products of three divisions, or of a length and a division, within 64 bits.
template <size_t kCount>
void KeepIntegers(config::Spec& spec, const char* const (&keys)[kCount], int64_t at_least, int64_t at_most,
                  ForeignValues& values) {
  for (const char* key : keys) {
    if (spec.Find(key) == nullptr) spec.kept().Int(key, &values.integers[key], "").AtLeast(at_least).AtMost(at_most);
  }
}

}  // namespace

void KeepForeignValues(config::Spec& spec, ForeignValues& values) {
  KeepIntegers(spec, kDivisions, 1, kMaxBatch, values);
  KeepIntegers(spec, kDevices, 1, kMaxBatch, values);
  KeepIntegers(spec, kBatches, 0, kMaxBatch, values);
  KeepIntegers(spec, kExperts, 0, kMaxBatch, values);
  KeepIntegers(spec, kLengths, 0, int64_t{1} << 40, values);
  constexpr char kTemperature[] = "rollout.val_kwargs.temperature";
  if (spec.Find(kTemperature) == nullptr) {
    spec.kept().Float(kTemperature, &values.numbers[kTemperature], "").AtLeast(0);
  }
  for (const char* key : kFlags) {
    if (spec.Find(key) == nullptr) spec.kept().Bool(key, &values.flags[key], "");
  }
  for (const char* key : kLists) {
    if (spec.Find(key) == nullptr) spec.kept().Strings(key, &values.lists[key], "");
  }
}

}  // namespace tdock::trainer
