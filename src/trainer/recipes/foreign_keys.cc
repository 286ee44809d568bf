// Keys of verl and MindSpeed-RL that mean nothing here.
#include "trainer/recipes/foreign_tables.h"

namespace tdock::trainer {
namespace {

constexpr char kOwnRewards[] =
    "rewards come from the rules of reward, or from reward.function, reward.program or reward.url";
constexpr char kOwnEngine[] = "answers come from the engine built in, or from rollout.servers";
constexpr char kOwnProcesses[] = "resources.pools and resources.roles say what runs where";
constexpr char kNoChoice[] = "this recipe does not let you choose it";
constexpr char kNotLeftOut[] = "nothing of a distribution is left out when a token is sampled";
constexpr char kOneAdamW[] = "the optimizer is AdamW";
constexpr char kNothingLike[] = "there is nothing like it here";
constexpr char kNotRejected[] = "no answer is rejected for its weights: algorithm.rollout_correction.rollout_is is all";

constexpr ForeignKeys kIgnoredKeys[] = {
    {kOwnRewards,
     "reward_model reward_manager reward.{num_workers,reward_manager,sandbox_fusion} sandbox_fusion "
     "reward_model.{reward_manager,sandbox_fusion,num_workers,reward_loop_source,reward_loop_module_path,"
     "reward_loop_class_name} reward_model.launch_reward_fn_async=false rl_config.{rule_reward,verifier_function,"
     "verifier_weight}"},
    {"reward_model.model.path names the reward model, which scores in this process",
     "reward.reward_model reward_model.{strategy,max_length,use_dynamic_bsz,forward_max_token_len_per_gpu,"
     "ulysses_sequence_parallel_size,enable_resource_pool,n_gpus_per_node,nnodes,rollout,profiler,micro_batch_size} "
     "reward_model.enable=false "
     "reward_model.model.{input_tokenizer,external_lib,trust_remote_code,use_remove_padding,use_fused_kernels,use_shm,"
     "fsdp_config}"},
    {"data.overlong_prompts says what happens to prompts that are too long",
     "data.{truncation,filter_overlong_prompts,filter_overlong_prompts_workers}"},
    {"records come from data.train_files, as data.name and data.columns say", "data.{custom_cls,sampler,datagen}"},
    {"validation takes the likeliest token, in one batch",
     "rollout.val_kwargs data.val_batch_size "
     "data.validation_shuffle=false"},
    {"turns with tools come from environment.function, environment.program or environment.url",
     "rollout.{multi_turn,agent} data.{tool_config_path,function_tool_path}"},
    {"mini-batches are drawn at random, in another order in each epoch",
     "{actor,critic}.shuffle rl_config.shuffle_minibatch"},
    {"all that is random follows from seed", "{actor,critic}.data_loader_seed rollout.{seed,full_determinism}"},
    {"model.compute_dtype is it", "rollout.dtype"},
    {"there is no critic", "trainer.critic_warmup=0"},
    {"a critic judges each answer alone, without its group",
     "algorithm.filter_groups "
     "rl_config.filter_groups_max_batches"},
    {"as many prompts are answered as are trained on, data.train_batch_size", "data.gen_batch_size"},
    {"samples are not weighted again", "algorithm.pf_ppo"},
    {"there is no KL in the reward", "algorithm.{kl_penalty,kl_ctrl}"},
    {"only GAE has it", "algorithm.lam rl_config.lam"},
    {kNoChoice,
     "actor.{clip_ratio_c,tau_pos,tau_neg,policy_loss} algorithm.{gamma,rollout_correction} rl_config.gamma"},
    {kNotRejected, "algorithm.rollout_correction.rollout_rs_threshold"},
    {"actor.policy_loss.loss_mode says which loss it is", "algorithm.rollout_correction.loss_type"},
    {"the stages of this recipe take all samples of a step",
     "trainer.balance_batch rl_config.{guarantee_order,use_dp_batch_balance}"},
    {"async_training.steps_ahead and trainer.executor say how the stages of a step overlap",
     "trainer.{v1,use_v1,use_legacy_worker_impl} algorithm.filter_groups.max_inflight_gen_batches"},
    {"actor.zero_stage, actor.optim.offload and resources.roles say how it is divided",
     "{actor,ref}.{strategy,fsdp_config,megatron,veomni,torchtitan} {actor,ref}.ulysses_sequence_parallel_size=1"},
    {"critic.zero_stage, critic.optim.offload and resources.roles say how it is divided",
     "critic.{strategy,fsdp,fsdp_config,megatron,veomni,torchtitan,model.fsdp_config} "
     "critic.ulysses_sequence_parallel_size=1"},
    {kOwnProcesses,
     "trainer.nnodes=1 trainer.n_gpus_per_node=1 rollout.{nnodes,n_gpus_per_node} actor_rollout_ref.hybrid_engine=true "
     "rollout.{tensor,pipeline}_model_parallel_size=1 rollout.{data,expert}_parallel_size=1 rl_config"},
    {"actor.ppo_micro_batch_size_per_gpu is it", "actor.ppo_micro_batch_size"},
    {"ref.log_prob_micro_batch_size_per_gpu and ref.log_prob_max_token_len_per_gpu are it, for old log-probabilities, "
     "too",
     "{ref,rollout}.log_prob_micro_batch_size rollout.{log_prob_micro_batch_size_per_gpu,log_prob_use_dynamic_bsz,"
     "log_prob_max_token_len_per_gpu} rl_config.actor_forward_micro_batch_size"},
    {"critic.ppo_micro_batch_size_per_gpu and critic.ppo_max_token_len_per_gpu are it, for values, too",
     "critic.{ppo_micro_batch_size,forward_micro_batch_size,forward_micro_batch_size_per_gpu,"
     "forward_max_token_len_per_gpu}"},
    {"it follows from rollout.n, data.max_prompt_length and data.max_response_length",
     "{actor,ref,critic}.rollout_n rollout.{prompt_length,response_length,max_model_len,context_length} "
     "reward_model.reward_kwargs.max_resp_len"},
    {"it follows from trainer.total_training_steps",
     "{actor,critic}.optim.{total_training_steps,lr_decay_steps,lr_wsd_decay_steps}=-1"},
    {kOwnEngine,
     "rollout.{name,mode,gpu_memory_utilization,max_num_batched_tokens,enforce_eager,free_cache_engine,"
     "cudagraph_capture_sizes,enable_chunked_prefill,enable_prefix_caching,load_format,layered_summon,disable_log_"
     "stats,"
     "logprobs_mode,scheduling_policy,engine_kwargs,skip_tokenizer_init,multi_stage_wake_up,skip_dump_dir,"
     "calculate_log_probs,checkpoint_engine,quantization,quantization_config_file,mtp,disaggregation,router_config_"
     "path,"
     "enable_sleep_mode} rollout.over_sample_rate=0 rollout.skip_rollout=false generate_config"},
    {"mixtures of experts are not supported",
     "{actor,ref}.router_replay rollout.enable_rollout_routing_replay=false "
     "rollout.moe_load_balance_metrics_interval=0"},
    {kOneAdamW,
     "{actor,critic}.optim.optimizer_impl=torch.optim "
     "{actor,critic}.optim.{muon_momentum,muon_nesterov,"
     "muon_split_qkv,muon_scale_mode,muon_coefficient_type,muon_num_ns_steps,muon_tp_mode,muon_fp32_matmul_prec,"
     "muon_extra_scale_factor,muon_scalar_optimizer,muon_match_adamw_update_rms,main_grads_dtype,exp_avg_dtype,"
     "exp_avg_sq_dtype,lr_wsd_decay_style} {actor,critic}.optim.{use_checkpoint_opt_param_scheduler,"
     "use_precision_aware_optimizer,use_layer_wise_distributed_optimizer}=false "
     "{actor,critic}.optim.weight_decay_incr_style=constant"},
    {"the rate rises from the first step on", "{actor,critic}.optim.zero_indexed_step"},
    {"model.path has the tokenizer and the configuration, and no code beside a model is run",
     "model.{hf_config_path,tokenizer_path,external_lib} critic.model.{hf_config_path,tokenizer_path,external_lib} "
     "{model,critic.model}.{use_shm,trust_remote_code}=false data.tokenizer data.{use_shm,trust_remote_code}=false "
     "generate_config.trust_remote_code=false"},
    {"model.recompute keeps less of the activations; they stay where they are",
     "{model,critic.model}.enable_activation_offload=false"},
    {"model.lora_rank, model.lora_alpha and model.target_modules are about adapters", "model.lora"},
    {"critic.model.lora_rank, critic.model.lora_alpha and critic.model.target_modules are about its adapters",
     "critic.model.lora"},
    {"weights are not quantized while they are trained", "{actor,rollout}.qat"},
    {"one token is predicted at a time", "{model,critic.model}.mtp"},
    {"there is only text",
     "actor.freeze_vision_tower=false data.{return_multi_modal_inputs,image_patch_size,image_key,video_key,audio_key,"
     "mm_processor_kwargs}"},
    {"samples are packed into rows, and samples of a prompt share it, which does not change results",
     "{actor,model,critic.model}.use_remove_padding=true {actor,ref}.pad_to_length=false "
     "actor.use_prefix_grouper=false"},
    {"it does not change results, and each operation has one implementation",
     "{actor,ref}.use_torch_compile {actor,model,critic.model}.use_fused_kernels=false "
     "{model,critic.model}.{fused_kernel_options,tiled_mlp} {model,critic.model}.use_liger=false "
     "{actor,ref}.{entropy_from_logits_with_chunking,entropy_checkpointing}=false "
     "{actor,ref}.entropy_from_logits_chunk_size actor.{calculate_entropy,calculate_sum_pi_squared,"
     "sum_pi_squared_checkpointing}=false"},
    {"a checkpoint has all that a run needs to go on; see trainer.save_freq",
     "{actor,critic}.checkpoint trainer.{max_critic_ckpt_to_keep,checkpoint_callback_class} "
     "trainer.del_local_ckpt_after_load=false"},
    {"trainer.profile_steps names the steps that are profiled", "{actor,ref,rollout,critic}.profiler global_profiler"},
    {"a run writes its folder and nothing else: trainer.run_dir",
     "rollout.{trace,prometheus} trainer.{project_name,experiment_name,logger,rollout_data_dir,validation_data_dir,"
     "default_hdfs_dir} rl_config.use_tensorboard reward_model.overlong_buffer.log "
     "reward_model.reward_kwargs.overlong_buffer_cfg.log"},
    {"nothing of a step is read from a dump", "skip"},
    {"no teacher is distilled", "distillation"},
    {"the dock is always there; see trainer.serve", "transfer_queue"},
    {"the recipe says whether there is a critic", "critic.enable=true"},
    {"it is about how the processes of verl work together",
     "{actor_rollout_ref,critic}.nccl_timeout data.{return_raw_chat,return_full_prompt} "
     "data.return_raw_input_ids=false trainer.ray_wait_register_center_timeout trainer.esi_redundant_time=0 ray_kwargs "
     "ray_init"},
    {"it is about how Megatron trains", "megatron_training actor_config ref_config reward_config critic_config"},
};

constexpr ForeignKeys kRefusedKeys[] = {
    {kNoChoice,
     "actor.entropy_coeff=0 actor.ppo_epochs=1 actor.loss_agg_mode=token-mean actor.loss_scale_factor "
     "actor.policy_loss.loss_mode=vanilla algorithm.adv_estimator=grpo algorithm.norm_adv_by_std_in_grpo=true "
     "algorithm.use_kl_in_reward=false algorithm.rollout_correction.rollout_is rl_config.adv_estimator=group_norm "
     "rl_config.epochs=1 rl_config.entropy_coeff=0"},
    {"there is no KL in the loss of this recipe", "actor.use_kl_loss=false"},
    {kOneAdamW, "{actor.,critic.,}optim.optimizer=AdamW,adam {actor.,critic.,}optim.override_optimizer_config"},
    {"set actor.optim.lr_warmup_steps, in steps",
     "actor.optim.lr_warmup_steps_ratio=0 actor_config.lr_warmup_fraction=0"},
    {"set critic.optim.lr_warmup_steps, in steps", "critic.optim.lr_warmup_steps_ratio=0"},
    {"set optim.lr_warmup_steps, in steps", "optim.lr_warmup_steps_ratio=0"},
    {"the rate rises from 0: actor.optim.lr_warmup_steps says how long", "actor.optim.lr_warmup_init=0"},
    {"the rate rises from 0: critic.optim.lr_warmup_steps says how long", "critic.optim.lr_warmup_init=0"},
    {"set actor.optim.min_lr_ratio, the share of the peak", "actor.optim.min_lr=0"},
    {"set critic.optim.min_lr_ratio, the share of the peak", "critic.optim.min_lr=0"},
    {"there is no such loss in actor.policy_loss.loss_mode", "actor.policy_loss.dro_beta"},
    {"critic.loss_agg_mode has no mode with it", "critic.loss_scale_factor=0"},
    {"set environment.function, environment.program or environment.url", "rollout.multi_turn.enable=false"},
    {"this recipe generates no answers",
     "{reward_model.overlong_buffer,reward_model.reward_kwargs.overlong_buffer_cfg}.enable=false "
     "rl_config.overlong_buffer_enable=false"},
    {kNotLeftOut,
     "{rollout,generate_config.sampling_config}.top_p=1 {rollout,generate_config.sampling_config}.top_k=-1,0 "
     "generate_config.sampling_config.min_p=0"},
    {"answers are sampled; see rollout.temperature", "rollout.do_sample=true"},
    {"an answer ends with its end token", "rollout.ignore_eos=false"},
    {"set data.template", "{model,critic.model}.custom_chat_template"},
    {"set data.template_variables", "data.apply_chat_template_kwargs"},
    {"only model.override_config.rope_scaling is overridden", "model.override_config"},
    {"only critic.model.override_config.rope_scaling is overridden", "critic.model.override_config"},
    {"set model.target_modules to the layers that get adapters", "model.exclude_modules"},
    {"set critic.model.target_modules to the layers that get adapters", "critic.model.exclude_modules"},
    {"set model.lora_rank", "model.lora.rank=0"},
    {"set critic.model.lora_rank", "critic.model.lora.rank=0"},
    {"adapters begin anew; merge those that there are into model.path first",
     "{model,critic.model}.{lora_adapter_path,lora.adapter_path}"},
    {"set data.name or data.adapters, which describe the records", "data.{custom_cls,datagen}.path"},
    {"data.shuffle and data.seed set the order", "data.sampler.class_path"},
    {"all samples of data.train_files are used", "data.train_max_samples=-1"},
    {"set reward.function to FILE.py:NAME",
     "{custom_reward_function,reward.custom_reward_function,reward_manager.module,reward.reward_manager.module}.path"},
    {"functions of reward.function have no other arguments than columns",
     "{custom_reward_function,reward.custom_reward_function}.reward_kwargs"},
    {"set reward_model.model.path", "reward.reward_model.enable=false reward.reward_model.model_path"},
    {"set reward.code.weight, for code that is run",
     "{sandbox_fusion,reward.sandbox_fusion,reward_model.sandbox_fusion}.url"},
    {kNotRejected, "algorithm.rollout_correction.{rollout_rs,rollout_token_veto_threshold}"},
    {"weights are taken as they are", "algorithm.rollout_correction.rollout_is_batch_normalize=false"},
    {"this recipe has no policy before a step", "algorithm.rollout_correction.bypass_mode=false"},
    {"actor.policy_loss.loss_mode says which loss it is", "algorithm.rollout_correction.use_policy_gradient=false"},
    {kNothingLike,
     "algorithm.use_pf_ppo=false distillation.enabled=false {actor,rollout}.qat.enable=false "
     "{model,critic.model}.mtp.enable=false skip.{rollout,rollout_tq,async_rollout}.enable=false"},
    {"set data.shuffle, its opposite", "megatron_training.no_shuffle=false"},
    {"the weight of the KL in the loss, actor.kl_loss_coef, is fixed", "rl_config.kl_ctrl_type=fixed"},
    {"a critic judges each answer alone, without its group",
     "algorithm.filter_groups.enable=false rl_config.filter_groups_enable=false"},
    {"an answer is generated in one piece", "rl_config.partial_rollout_max_split=1"},
};

}  // namespace

std::span<const ForeignKeys> IgnoredKeys() { return kIgnoredKeys; }
std::span<const ForeignKeys> RefusedKeys() { return kRefusedKeys; }

}  // namespace tdock::trainer
