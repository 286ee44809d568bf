#include "trainer/recipes/field_names.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace tdock::trainer {
namespace {

struct OtherName {
  const char* other;
  const char* key;
};

constexpr OtherName kSections[] = {
    {"actor_rollout_ref.actor", "actor"},
    {"actor_rollout_ref.rollout", "rollout"},
    {"actor_rollout_ref.ref", "ref"},
    {"actor_rollout_ref.model", "model"},
};

// verl's, without actor_rollout_ref.
constexpr OtherName kVerlKeys[] = {
    {"actor.grad_clip", "actor.optim.clip_grad"},
    {"actor.optim.num_cycles", "actor.optim.lr_scheduler_kwargs.num_cycles"},
    {"actor.optim.warmup_style", "actor.optim.lr_scheduler_type"},
    {"critic.grad_clip", "critic.optim.clip_grad"},
    {"critic.optim.num_cycles", "critic.optim.lr_scheduler_kwargs.num_cycles"},
    {"critic.optim.warmup_style", "critic.optim.lr_scheduler_type"},
    {"critic.model.enable_gradient_checkpointing", "critic.model.recompute"},
    {"model.enable_gradient_checkpointing", "model.recompute"},
    {"data.prompt_key", "data.columns.prompt"},
    {"data.reward_fn_key", "data.columns.source"},
    {"data.val_max_samples", "trainer.val_max_samples"},
    {"data.dataloader_num_workers", "data.num_workers"},
    {"data.seed", "seed"},
    {"reward_model.overlong_buffer.enable", "reward.overlong_buffer.enable"},
    {"reward_model.overlong_buffer.len", "reward.overlong_buffer.len"},
    {"reward_model.overlong_buffer.penalty_factor", "reward.overlong_buffer.penalty_factor"},
    {"reward_model.reward_kwargs.overlong_buffer_cfg.enable", "reward.overlong_buffer.enable"},
    {"reward_model.reward_kwargs.overlong_buffer_cfg.len", "reward.overlong_buffer.len"},
    {"reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor", "reward.overlong_buffer.penalty_factor"},
    {"trainer.default_local_dir", "trainer.run_dir"},
    {"trainer.device", "device"},
    {"trainer.max_actor_ckpt_to_keep", "trainer.max_checkpoints_to_keep"},
};

constexpr OtherName kMindSpeedKeys[] = {
    {"megatron_training.global_batch_size", "data.train_batch_size"},
    {"megatron_training.train_iters", "trainer.total_training_steps"},
    {"megatron_training.save_interval", "trainer.save_freq"},
    {"megatron_training.seed", "seed"},
    {"actor_config.micro_batch_size", "actor.ppo_micro_batch_size_per_gpu"},
    {"actor_config.lr", "actor.optim.lr"},
    {"actor_config.lr_decay_style", "actor.optim.lr_scheduler_type"},
    {"actor_config.weight_decay", "actor.optim.weight_decay"},
    {"actor_config.clip_grad", "actor.optim.clip_grad"},
    {"actor_config.adam_beta1", "actor.optim.beta1"},
    {"actor_config.adam_beta2", "actor.optim.beta2"},
    {"rl_config.n_samples_per_prompt", "rollout.n"},
    {"rl_config.mini_batch_size", "actor.ppo_mini_batch_size"},
    {"rl_config.ref_forward_micro_batch_size", "ref.log_prob_micro_batch_size_per_gpu"},
    {"rl_config.max_prompt_length", "data.max_prompt_length"},
    {"rl_config.init_kl_coef", "actor.kl_loss_coef"},
    {"rl_config.kl_penalty", "actor.kl_loss_type"},
    {"rl_config.adv_estimator", "algorithm.adv_estimator"},
    {"rl_config.gamma", "algorithm.gamma"},
    {"rl_config.lam", "algorithm.lam"},
    {"rl_config.overlong_buffer_enable", "reward.overlong_buffer.enable"},
    {"rl_config.overlong_buffer", "reward.overlong_buffer.len"},
    {"rl_config.overlong_buffer_penalty_factor", "reward.overlong_buffer.penalty_factor"},
    {"rl_config.filter_groups_enable", "algorithm.filter_groups.enable"},
    {"rl_config.filter_groups_max_batches", "algorithm.filter_groups.max_num_gen_batches"},
    {"rl_config.clip_ratio_low", "actor.clip_ratio_low"},
    {"rl_config.clip_ratio_high", "actor.clip_ratio_high"},
    {"rl_config.epochs", "actor.ppo_epochs"},
    {"rl_config.entropy_coeff", "actor.entropy_coeff"},
    {"rl_config.partial_rollout_max_split", "rollout.partial_rollout_max_split"},
    {"rl_config.guarantee_order", "trainer.guarantee_order"},
    {"rl_config.use_dp_batch_balance", "trainer.balance_batch"},
    {"rl_config.actor_rollout_dispatch_size", "trainer.dispatch_size.rollout"},
    {"rl_config.actor_logprob_dispatch_size", "trainer.dispatch_size.old_log_prob"},
    {"rl_config.ref_dispatch_size", "trainer.dispatch_size.ref"},
    {"rl_config.reward_dispatch_size", "trainer.dispatch_size.reward"},
    {"rl_config.critic_value_dispatch_size", "trainer.dispatch_size.values"},
    {"generate_config.max_num_seqs", "rollout.max_num_seqs"},
    {"generate_config.sampling_config.max_tokens", "data.max_response_length"},
    {"generate_config.sampling_config.temperature", "rollout.temperature"},
    {"generate_config.sampling_config.top_p", "rollout.top_p"},
    {"generate_config.sampling_config.top_k", "rollout.top_k"},
};

// DeepSpeed's, and DeepSpeed-Chat's arguments.
constexpr OtherName kDeepSpeedKeys[] = {
    {"actor_zero_stage", "actor.zero_stage"},
    {"critic_zero_stage", "critic.zero_stage"},
    {"zero_optimization.stage", "zero_stage"},
    {"zero_optimization.stage", "actor.zero_stage"},
};

struct OtherValue {
  const char* key;
  const char* other;
  const char* value;
};

constexpr OtherValue kOtherValues[] = {
    {"algorithm.kl_penalty", "kl", "k1"},
    {"algorithm.kl_penalty", "mse", "k2"},
    {"algorithm.kl_penalty", "low_var_kl", "k3"},
    {"actor.policy_loss.loss_mode", "ppo", "vanilla"},
    {"actor.kl_loss_type", "kl", "k1"},
    {"actor.kl_loss_type", "mse", "k2"},
    {"actor.kl_loss_type", "low_var_kl", "k3"},
    {"actor.optim.lr_warmup_steps", "-1", "0"},
    {"critic.optim.lr_warmup_steps", "-1", "0"},
    {"algorithm.adv_estimator", "group_norm", "grpo"},
    {"algorithm.filter_groups.metric", "acc", "score"},
    {"algorithm.filter_groups.metric", "seq_reward", "reward"},
    {"model.recompute", "true", "layers"},
    {"model.recompute", "false", "nothing"},
    {"model.target_modules", "all-linear", ""},
    {"algorithm.rollout_correction.bypass_mode", "True", "true"},
    {"algorithm.rollout_correction.bypass_mode", "False", "false"},
};

struct Foreign {
  const char* name;
  const char* why;
  const char* harmless = nullptr;  // values that mean what happens here anyway, with commas between them
};

constexpr char kNotSharded[] = "one process has the whole model";
constexpr char kZero[] = "zero_stage says what each of the processes that train together keeps";
constexpr char kOneProcess[] = "one process does everything";
constexpr char kOwnEngine[] = "answers come from the engine built in, or from rollout.servers";
constexpr char kNoLoggers[] = "a run writes its folder and nothing else";
constexpr char kNoTools[] = "there are no turns with tools";
constexpr char kNoCritic[] = "there is no critic";
constexpr char kNoImages[] = "there is only text";
constexpr char kNoPython[] = "Python classes do not run here";
constexpr char kNoProfiler[] = "there is no profiler of stages";
constexpr char kOverlong[] = "data.overlong_prompts says what happens to prompts that are too long";
constexpr char kPacked[] = "samples are packed into rows, which does not change results";
constexpr char kOneAdamW[] = "the optimizer is AdamW";
constexpr char kOneKernel[] = "each operation has one implementation";
constexpr char kNoChoice[] = "this recipe does not let you choose it";
constexpr char kWholeBatch[] = "the stages of this recipe take all samples of a step";
constexpr char kMegatron[] = "it is about how Megatron trains";

// Keys about how, where and with what a program runs.
constexpr Foreign kIgnored[] = {
    {"actor_rollout_ref.hybrid_engine", kOneProcess, "true"},
    {"actor_rollout_ref.nccl_timeout", kOneProcess},
    {"actor.rollout_n", "rollout.n is it"},
    {"actor.strategy", kZero},
    {"actor.fsdp_config", kZero},
    {"actor.megatron", kNotSharded},
    {"actor.ulysses_sequence_parallel_size", kNotSharded, "1"},
    {"actor.ppo_micro_batch_size", "set actor.ppo_micro_batch_size_per_gpu"},
    {"actor.use_dynamic_bsz", kPacked},
    {"actor.ppo_max_token_len_per_gpu", kPacked},
    {"actor.use_remove_padding", kPacked, "true"},
    {"actor.use_torch_compile", "nothing is compiled while it runs"},
    {"actor.use_fused_kernels", kOneKernel},
    {"actor.shuffle", "mini-batches are always drawn at random"},
    {"actor.data_loader_seed", "seed is the seed of everything"},
    {"actor.checkpoint", "what a checkpoint holds is fixed"},
    {"actor.profiler", kNoProfiler},
    {"actor.router_replay", "there are no mixtures of experts"},
    {"actor.entropy_from_logits_with_chunking", "it does not change results"},
    {"actor.entropy_checkpointing", "it does not change results"},
    {"actor.calculate_entropy", "it does not change results"},
    {"actor.calculate_sum_pi_squared", "it does not change results"},
    {"actor.sum_pi_squared_checkpointing", "it does not change results"},
    {"actor.use_prefix_grouper", "samples of a prompt always share it"},
    {"actor.freeze_vision_tower", kNoImages},
    {"actor.optim.optimizer_impl", kOneAdamW},
    {"actor.optim.total_training_steps", "trainer.total_training_steps is it"},
    {"ref.rollout_n", "rollout.n is it"},
    {"ref.strategy", kNotSharded},
    {"ref.fsdp_config", kNotSharded},
    {"ref.megatron", kNotSharded},
    {"ref.ulysses_sequence_parallel_size", kNotSharded, "1"},
    {"ref.use_torch_compile", "nothing is compiled while it runs"},
    {"ref.log_prob_micro_batch_size", "set ref.log_prob_micro_batch_size_per_gpu"},
    {"ref.log_prob_use_dynamic_bsz", kPacked},
    {"ref.log_prob_max_token_len_per_gpu", kPacked},
    {"ref.profiler", kNoProfiler},
    {"ref.router_replay", "there are no mixtures of experts"},
    {"ref.entropy_from_logits_with_chunking", "it does not change results"},
    {"ref.entropy_checkpointing", "it does not change results"},
    {"rollout.name", kOwnEngine},
    {"rollout.mode", kOwnEngine},
    {"rollout.dtype", "model.compute_dtype is it"},
    {"rollout.prompt_length", "data.max_prompt_length is it"},
    {"rollout.response_length", "data.max_response_length is it"},
    {"rollout.max_model_len", "it is the length of a prompt and its answer"},
    {"rollout.context_length", "it is the length of a prompt and its answer"},
    {"rollout.gpu_memory_utilization", kOwnEngine},
    {"rollout.max_num_batched_tokens", kOwnEngine},
    {"rollout.enforce_eager", kOwnEngine},
    {"rollout.free_cache_engine", kOwnEngine},
    {"rollout.cudagraph_capture_sizes", kOwnEngine},
    {"rollout.enable_chunked_prefill", kOwnEngine},
    {"rollout.enable_prefix_caching", kOwnEngine},
    {"rollout.load_format", kOwnEngine},
    {"rollout.layered_summon", kOwnEngine},
    {"rollout.disable_log_stats", kOwnEngine},
    {"rollout.logprobs_mode", kOwnEngine},
    {"rollout.scheduling_policy", kOwnEngine},
    {"rollout.engine_kwargs", kOwnEngine},
    {"rollout.skip_tokenizer_init", kOwnEngine},
    {"rollout.multi_stage_wake_up", kOwnEngine},
    {"rollout.over_sample_rate", kOwnEngine, "0"},
    {"rollout.skip_rollout", kOwnEngine, "false"},
    {"rollout.skip_dump_dir", kOwnEngine},
    {"rollout.calculate_log_probs", kOwnEngine},
    {"rollout.checkpoint_engine", kOwnEngine},
    {"rollout.quantization", kOwnEngine},
    {"rollout.quantization_config_file", kOwnEngine},
    {"rollout.enable_rollout_routing_replay", "there are no mixtures of experts", "false"},
    {"rollout.mtp", kOwnEngine},
    {"rollout.tensor_model_parallel_size", kNotSharded, "1"},
    {"rollout.data_parallel_size", kOneProcess, "1"},
    {"rollout.expert_parallel_size", kNotSharded, "1"},
    {"rollout.pipeline_model_parallel_size", kNotSharded, "1"},
    {"rollout.log_prob_micro_batch_size", "set ref.log_prob_micro_batch_size_per_gpu"},
    {"rollout.log_prob_micro_batch_size_per_gpu", "ref.log_prob_micro_batch_size_per_gpu holds for it, too"},
    {"rollout.log_prob_use_dynamic_bsz", kPacked},
    {"rollout.log_prob_max_token_len_per_gpu", kPacked},
    {"rollout.val_kwargs", "validation takes the likeliest token"},
    {"rollout.multi_turn", kNoTools},
    {"rollout.agent", kNoTools},
    {"rollout.trace", kNoLoggers},
    {"rollout.prometheus", kNoLoggers},
    {"rollout.profiler", kNoProfiler},
    {"model.hf_config_path", "config.json of model.path is read"},
    {"model.tokenizer_path", "the tokenizer is that of model.path"},
    {"model.use_shm", "files are mapped where they are"},
    {"model.trust_remote_code", "code beside a model is never run"},
    {"model.external_lib", "Python modules are not loaded"},
    {"model.enable_activation_offload", "activations stay where they are; see model.recompute"},
    {"model.use_remove_padding", kPacked, "true"},
    {"model.use_liger", kOneKernel},
    {"model.use_fused_kernels", kOneKernel},
    {"model.fused_kernel_options", kOneKernel},
    {"model.tiled_mlp", kOneKernel},
    {"model.mtp", "there is no prediction of several tokens"},
    {"data.tokenizer", "the tokenizer is that of model.path"},
    {"data.use_shm", "files are mapped where they are"},
    {"data.prompt_key", "the columns of data sets are set by other keys of data"},
    {"data.gen_batch_size", "as many prompts are answered as are trained on"},
    {"data.val_batch_size", "validation is one batch"},
    {"data.truncation", kOverlong},
    {"data.filter_overlong_prompts", kOverlong},
    {"data.custom_cls", kNoPython},
    {"data.sampler", kNoPython},
    {"data.datagen", kNoPython},
    {"data.return_raw_input_ids", kOneProcess},
    {"data.return_raw_chat", kOneProcess},
    {"data.return_full_prompt", kOneProcess},
    {"data.return_multi_modal_inputs", kNoImages},
    {"data.image_patch_size", kNoImages},
    {"data.image_key", kNoImages},
    {"data.video_key", kNoImages},
    {"data.dataloader_num_workers", kOneProcess},
    {"data.filter_overlong_prompts_workers", kOneProcess},
    {"data.validation_shuffle", "the order of validation samples changes nothing"},
    {"data.tool_config_path", kNoTools},
    {"data.trust_remote_code", "code beside a data set is never run"},
    {"actor.clip_ratio_c", kNoChoice},
    {"actor.tau_pos", kNoChoice},
    {"actor.tau_neg", kNoChoice},
    {"actor.policy_loss", kNoChoice},
    {"algorithm.gamma", kNoChoice},
    {"algorithm.kl_penalty", "there is no KL in the reward"},
    {"algorithm.kl_ctrl", "there is no KL in the reward"},
    {"algorithm.rollout_correction", kNoChoice},
    {"algorithm.lam", "only GAE has it"},
    {"algorithm.pf_ppo", "samples are not weighted again"},
    {"trainer.nnodes", "there is one machine", "1"},
    {"trainer.n_gpus_per_node", kOneProcess, "1"},
    {"trainer.project_name", kNoLoggers},
    {"trainer.experiment_name", kNoLoggers},
    {"trainer.logger", kNoLoggers},
    {"trainer.balance_batch", kWholeBatch},
    {"trainer.rollout_data_dir", kNoLoggers},
    {"trainer.validation_data_dir", kNoLoggers},
    {"trainer.default_hdfs_dir", kNoLoggers},
    {"trainer.del_local_ckpt_after_load", "nothing is deleted"},
    {"trainer.max_critic_ckpt_to_keep", "it is saved with the rest of a run"},
    {"trainer.esi_redundant_time", kOneProcess},
    {"trainer.ray_wait_register_center_timeout", kOneProcess},
    {"trainer.use_legacy_worker_impl", kOneProcess},
    {"reward_manager", "the reward is set by the keys of reward"},
    {"reward_model", "the reward is set by the keys of reward"},
    {"reward_model.enable", "there is a reward model where reward_model.model.path is set"},
    {"reward_model.strategy", kNotSharded},
    {"reward_model.reward_manager", "the reward is set by the keys of reward"},
    {"reward_model.launch_reward_fn_async", "answers are scored beside one another"},
    {"reward_model.micro_batch_size", "reward_model.micro_batch_size_per_gpu is it"},
    {"reward_model.max_length", "answers are scored whole"},
    {"reward_model.use_dynamic_bsz", "reward_model.micro_batch_size_per_gpu is it"},
    {"reward_model.forward_max_token_len_per_gpu", "reward_model.micro_batch_size_per_gpu is it"},
    {"reward_model.ulysses_sequence_parallel_size", kNotSharded},
    {"reward_model.sandbox_fusion", "the reward is set by the keys of reward"},
    {"reward_model.profiler", kNoProfiler},
    {"reward_model.model.input_tokenizer", "the tokenizer of the policy is known"},
    {"reward_model.model.external_lib", kNoPython},
    {"reward_model.model.trust_remote_code", kNoPython},
    {"reward_model.model.use_remove_padding", kPacked},
    {"reward_model.model.use_fused_kernels", kOneKernel},
    {"reward_model.model.use_shm", kOneProcess},
    {"reward_model.model.fsdp_config", kNotSharded},
    {"critic.enable", "the recipe says whether there is one"},
    {"critic.strategy", kZero},
    {"critic.rollout_n", "rollout.n is it"},
    {"critic.shuffle", "the recipe says which samples share a mini-batch"},
    {"critic.forward_micro_batch_size", "critic.ppo_micro_batch_size_per_gpu is it"},
    {"critic.forward_micro_batch_size_per_gpu", "critic.ppo_micro_batch_size_per_gpu is it"},
    {"critic.forward_max_token_len_per_gpu", "critic.ppo_micro_batch_size_per_gpu is it"},
    {"critic.checkpoint", "a run is saved as a whole"},
    {"critic.profiler", kNoProfiler},
    {"critic.model.tokenizer_path", "it has the policy's tokenizer"},
    {"critic.model.external_lib", kNoPython},
    {"critic.model.trust_remote_code", kNoPython},
    {"critic.model.use_remove_padding", kPacked},
    {"critic.model.use_shm", kOneProcess},
    {"critic.model.enable_activation_offload", "activations stay where they are"},
    {"critic.model.fsdp_config", kZero},
    {"reward_model.overlong_buffer.log", "overlong/* are always among the metrics"},
    {"reward_model.reward_kwargs.overlong_buffer_cfg.log", "overlong/* are always among the metrics"},
    {"reward_model.reward_kwargs.max_resp_len", "data.max_response_length is it"},
    {"custom_reward_function", "the reward is set by the keys of reward"},
    {"global_profiler", kNoProfiler},
    {"transfer_queue", "the dock is always there"},
    {"ray_kwargs", kOneProcess},
    {"ray_init", kOneProcess},
    {"megatron_training", kMegatron},
    {"actor_config", kMegatron},
    {"ref_config", kMegatron},
    {"reward_config", kMegatron},
    {"critic_config", kMegatron},
    {"rl_config", kOneProcess},
    {"rl_config.rule_reward", "the reward is set by the keys of reward"},
    {"rl_config.guarantee_order", kWholeBatch},
    {"rl_config.use_dp_batch_balance", kWholeBatch},
    {"rl_config.verifier_function", "the reward is set by the keys of reward"},
    {"rl_config.verifier_weight", "the reward is set by the keys of reward"},
    {"rl_config.use_tensorboard", kNoLoggers},
    {"rl_config.shuffle_minibatch", "mini-batches are always drawn at random"},
    {"rl_config.actor_forward_micro_batch_size", "ref.log_prob_micro_batch_size_per_gpu holds for it, too"},
    {"rl_config.gamma", kNoChoice},
    {"rl_config.lam", "only GAE has it"},
    {"generate_config", kOwnEngine},
    {"generate_config.trust_remote_code", "code beside a model is never run"},
};

constexpr char kNotLeftOut[] = "nothing of a distribution is left out when a token is sampled";
constexpr char kNoPythonRewards[] = "Python functions do not run here; the reward is set by the keys of reward";

// Keys that would change results.
constexpr Foreign kRefused[] = {
    {"actor.use_kl_loss", "for a loss without KL, set actor.kl_loss_coef to 0", "true"},
    {"actor.entropy_coeff", kNoChoice, "0"},
    {"actor.ppo_epochs", kNoChoice, "1"},
    {"actor.loss_agg_mode", kNoChoice, "token-mean"},
    {"actor.loss_scale_factor", kNoChoice},
    {"actor.policy_loss.loss_mode", kNoChoice, "vanilla"},
    {"actor.optim.optimizer", kOneAdamW, "AdamW"},
    {"actor.optim.override_optimizer_config", kOneAdamW},
    {"actor.optim.lr_warmup_steps_ratio", "set actor.optim.lr_warmup_steps", "0"},
    {"rollout.multi_turn.enable", kNoTools, "false"},
    {"reward_model.overlong_buffer.enable", "this recipe generates no answers", "false"},
    {"reward_model.reward_kwargs.overlong_buffer_cfg.enable", "this recipe generates no answers", "false"},
    {"rollout.top_p", kNotLeftOut, "1"},
    {"rollout.top_k", kNotLeftOut, "-1,0"},
    {"rollout.do_sample", "answers are sampled; see rollout.temperature", "true"},
    {"rollout.ignore_eos", "an answer ends with its end token", "false"},
    {"model.custom_chat_template", "the template is that of model.path"},
    {"model.override_config", "of what config.json says, only the rope scaling can be overridden"},
    {"model.exclude_modules", "set model.target_modules to what gets adapters"},
    {"model.lora_adapter_path", "adapters begin anew"},
    {"data.custom_cls.path", kNoPython},
    {"data.sampler.class_path", kNoPython},
    {"data.datagen.path", kNoPython},
    {"data.apply_chat_template_kwargs", "templates take no arguments"},
    {"data.train_max_samples", "all samples of the files are used", "-1"},
    {"critic.ppo_epochs", "actor.ppo_epochs is for both"},
    {"algorithm.adv_estimator", kNoChoice, "grpo"},
    {"algorithm.norm_adv_by_std_in_grpo", kNoChoice, "true"},
    {"algorithm.use_kl_in_reward", kNoChoice, "false"},
    {"algorithm.rollout_correction.rollout_is", kNoChoice},
    {"algorithm.rollout_correction.rollout_is_batch_normalize", "weights are taken as they are", "false"},
    {"algorithm.rollout_correction.rollout_rs", "no answer is rejected for its weight"},
    {"algorithm.rollout_correction.rollout_token_veto_threshold", "no answer is rejected for a token"},
    {"algorithm.rollout_correction.bypass_mode", "this recipe has no policy before a step", "false"},
    {"algorithm.rollout_correction.use_policy_gradient", "actor.policy_loss.loss_mode says which loss it is", "false"},
    {"algorithm.use_pf_ppo", "samples are not weighted again", "false"},
    {"trainer.val_only", "a run trains", "false"},
    {"custom_reward_function.path", kNoPythonRewards},
    {"reward_manager.module.path", kNoPythonRewards},
    {"megatron_training.no_shuffle", "data.shuffle is its opposite", "false"},
    {"actor_config.lr_warmup_fraction", "set actor.optim.lr_warmup_steps", "0"},
    {"rl_config.adv_estimator", kNoChoice, "group_norm"},
    {"rl_config.epochs", kNoChoice, "1"},
    {"rl_config.entropy_coeff", kNoChoice, "0"},
    {"rl_config.kl_ctrl_type", "the weight of the KL in the loss is fixed", "fixed"},
    {"algorithm.filter_groups.enable", "no group of answers is left out", "false"},
    {"rl_config.overlong_buffer_enable", "this recipe generates no answers", "false"},
    {"rl_config.filter_groups_enable", "no group of answers is left out", "false"},
    {"rl_config.partial_rollout_max_split", "an answer is generated in one piece", "1"},
    {"generate_config.sampling_config.top_p", kNotLeftOut, "1"},
    {"generate_config.sampling_config.top_k", kNotLeftOut, "-1,0"},
    {"generate_config.sampling_config.min_p", kNotLeftOut, "0"},
};

// Neither bound, nor inside a key that is, nor another name of one.
bool IsFree(const config::Spec& spec, absl::string_view name) {
  for (const config::Spec::OtherName& alias : spec.aliases()) {
    if (alias.other == name) return false;
  }
  while (spec.Find(name) == nullptr) {
    const size_t dot = name.rfind('.');
    if (dot == absl::string_view::npos) return true;
    name = name.substr(0, dot);
  }
  return false;
}

void AddAlias(config::Spec& spec, const OtherName& name) {
  if (spec.Find(name.key) != nullptr && IsFree(spec, name.other)) spec.Alias(name.other, name.key);
}

// A name that gives several keys, if the recipe has all of them.
void AddSpread(config::Spec& spec, const std::string& other, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    if (spec.Find(key) == nullptr) return;
  }
  if (IsFree(spec, other)) spec.Spread(other, keys);
}

std::vector<std::string> Harmless(const Foreign& foreign) {
  if (foreign.harmless == nullptr) return {};
  return absl::StrSplit(foreign.harmless, ',');
}

}  // namespace

void BindFieldNames(config::Spec& spec) {
  for (const OtherName& section : kSections) spec.AliasSection(section.other, section.key);
  for (const OtherName& name : kVerlKeys) AddAlias(spec, name);
  for (const OtherName& name : kMindSpeedKeys) AddAlias(spec, name);
  for (const OtherName& name : kDeepSpeedKeys) AddAlias(spec, name);
  for (const char* clip : {"actor.clip_ratio", "rl_config.clip_ratio"}) {
    AddSpread(spec, clip, {"actor.clip_ratio_low", "actor.clip_ratio_high"});
  }
  for (const char* optim : {"actor.optim", "critic.optim"}) {
    AddSpread(spec, absl::StrCat(optim, ".betas"), {absl::StrCat(optim, ".beta1"), absl::StrCat(optim, ".beta2")});
  }
  for (const OtherValue& value : kOtherValues) {
    if (spec.Find(value.key) != nullptr) spec.AliasValue(value.key, value.other, value.value);
  }
  for (const Foreign& foreign : kIgnored) {
    // Of a section in which the recipe has keys, what is not among them is unknown.
    if (IsFree(spec, foreign.name) && !spec.HasSection(foreign.name))
      spec.Ignore(foreign.name, foreign.why, Harmless(foreign));
  }
  for (const Foreign& foreign : kRefused) {
    if (IsFree(spec, foreign.name)) spec.Refuse(foreign.name, foreign.why, Harmless(foreign));
  }
  if (!spec.HasSection("critic")) {
    spec.Ignore("critic", kNoCritic);
    if (IsFree(spec, "trainer.critic_warmup")) spec.Ignore("trainer.critic_warmup", kNoCritic, {"0"});
  }
}

}  // namespace tdock::trainer
