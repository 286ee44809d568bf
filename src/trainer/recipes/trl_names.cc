// TRL's and PEFT's names of keys: the fields of SFTConfig, RewardConfig, DPOConfig, GRPOConfig, RLOOConfig,
// PPOConfig, ModelConfig and LoraConfig, at the top of a file.
#include "trainer/recipes/foreign_tables.h"

namespace tdock::trainer {
namespace {

constexpr OtherName kTrlOptimNames[] = {
    {"learning_rate", "lr"},
    {"adam_beta1", "beta1"},
    {"adam_beta2", "beta2"},
    {"max_grad_norm", "clip_grad"},
    {"warmup_steps", "lr_warmup_steps"},
    {"lr_scheduler_type", "lr_scheduler_type"},
    {"lr_scheduler_kwargs.num_cycles", "lr_scheduler_kwargs.num_cycles"},
    {"lr_scheduler_kwargs.power", "lr_scheduler_kwargs.power"},
    {"lr_scheduler_kwargs.timescale", "lr_scheduler_kwargs.timescale"},
    {"lr_scheduler_kwargs.num_decay_steps", "lr_scheduler_kwargs.num_decay_steps"},
    {"lr_scheduler_kwargs.warmup_type", "lr_scheduler_kwargs.warmup_type"},
    {"lr_scheduler_kwargs.decay_type", "lr_scheduler_kwargs.decay_type"},
    {"lr_scheduler_kwargs.warmup_lr_rate", "lr_scheduler_kwargs.warmup_lr_rate"},
    {"lr_scheduler_kwargs.min_lr_rate", "min_lr_ratio"},
    {"lr_scheduler_kwargs.min_lr_ratio", "min_lr_ratio"},
    {"weight_decay", "weight_decay"},
};

constexpr OtherName kTrlNames[] = {
    {"model_name_or_path", "model.path"},
    {"sft_model_path", "model.path"},
    {"reward_model_path", "reward_model.model.path"},
    {"reward_model_name_or_path", "reward_model.model.path"},
    {"gradient_checkpointing", "model.recompute"},
    {"activation_checkpointing", "model.recompute"},
    {"r", "model.lora_rank"},
    {"lora_r", "model.lora_rank"},
    {"model.r", "model.lora_rank"},
    {"model.lora_r", "model.lora_rank"},
    {"lora_alpha", "model.lora_alpha"},
    {"lora_dropout", "model.lora_dropout"},
    {"target_modules", "model.target_modules"},
    {"lora_target_modules", "model.target_modules"},
    {"model.lora_target_modules", "model.target_modules"},
    {"modules_to_save", "model.modules_to_save"},
    {"lora_modules_to_save", "model.modules_to_save"},
    {"model.lora_modules_to_save", "model.modules_to_save"},
    {"max_length", "data.max_length"},
    {"max_seq_length", "data.max_length"},
    {"dataset_text_field", "data.columns.text"},
    {"shuffle_dataset", "data.shuffle"},
    {"data_seed", "data.seed"},
    {"dataloader_drop_last", "data.drop_last"},
    {"dataloader_num_workers", "data.num_workers"},
    {"output_dir", "trainer.run_dir"},
    {"num_train_epochs", "trainer.total_epochs"},
    {"epochs", "trainer.total_epochs"},
    {"save_steps", "trainer.save_freq"},
    {"save_total_limit", "trainer.max_checkpoints_to_keep"},
    {"eval_steps", "trainer.test_freq"},
    {"eval_on_start", "trainer.val_before_train"},
    {"reward_weights", "reward.function_weights"},
    {"center_rewards_coefficient", "loss.centre_coef"},
    {"beta", "dpo.beta"},
    {"rpo_alpha", "dpo.nll_coef"},
    {"label_smoothing", "dpo.label_smoothing"},
    {"beta", "actor.kl_loss_coef"},
    {"num_generations", "rollout.n"},
    {"temperature", "rollout.temperature"},
    {"max_prompt_length", "data.max_prompt_length"},
    {"max_completion_length", "data.max_response_length"},
    {"response_length", "data.max_response_length"},
    {"max_new_tokens", "data.max_response_length"},
    {"rollout.max_new_tokens", "data.max_response_length"},
    {"num_iterations", "actor.ppo_epochs"},
    {"num_ppo_epochs", "actor.ppo_epochs"},
    {"epsilon_high", "actor.clip_ratio_high"},
    {"delta", "actor.clip_ratio_c"},
    {"entropy_coef", "actor.entropy_coeff"},
    {"sapo_temperature_pos", "actor.tau_pos"},
    {"sapo_temperature_neg", "actor.tau_neg"},
    {"vespo_k_pos", "actor.policy_loss.vespo_k_pos"},
    {"vespo_k_neg", "actor.policy_loss.vespo_k_neg"},
    {"vespo_lambda_pos", "actor.policy_loss.vespo_lambda_pos"},
    {"vespo_lambda_neg", "actor.policy_loss.vespo_lambda_neg"},
    {"scale_rewards", "algorithm.norm_adv_by_std_in_grpo"},
    {"local_rollout_forward_batch_size", "ref.log_prob_micro_batch_size_per_gpu"},
    {"kl_coef", "algorithm.kl_ctrl.kl_coef"},
    {"kl_estimator", "algorithm.kl_penalty"},
    {"gamma", "algorithm.gamma"},
    {"lam", "algorithm.lam"},
    {"cliprange_value", "critic.cliprange_value"},
};

constexpr ForeignKeys kTrlIgnoredKeys[] = {
    {"trainer.test_freq says when a run is validated, in passes as large as in training",
     "eval_strategy evaluation_strategy eval_delay eval_accumulation_steps eval_do_concat_batches "
     "eval_use_gather_object "
     "eval_packing per_device_eval_batch_size "
     "num_generations_eval do_eval=true do_train=true do_predict=false prediction_loss_only=false"},
    {"trainer.save_freq says when a run is saved, as a whole",
     "save_strategy save_only_model=false save_safetensors=true save_on_each_node=false enable_jit_checkpoint=false"},
    {"trainer.resume_mode says from where a run goes on",
     "ignore_data_skip=false overwrite_output_dir=false "
     "restore_callback_states_from_checkpoint=false"},
    {"device says where it runs", "use_cpu no_cuda"},
    {"model.recompute names the parts that are computed again",
     "gradient_checkpointing_kwargs activation_checkpointing_kwargs"},
    {"activations stay where they are; see model.recompute", "activation_offloading=false"},
    {"model.dropout is for training alone", "disable_dropout=true"},
    {"model.compute_dtype holds for validations, too", "{bf16,fp16}_full_eval=false tf32=false"},
    {"data.keep says which columns stages have", "remove_unused_columns label_names"},
    {"data.num_workers threads read ahead",
     "dataset_num_proc dataset_kwargs dataset_streaming=false "
     "dataloader_{pin_memory,persistent_workers,prefetch_factor,"
     "in_order,multiprocessing_context}"},
    {"data.val_files or data.val_share give the validation data", "dataset_test_split=test"},
    {"samples are packed into rows, which does not change results",
     "padding_free pad_to_multiple_of packing_strategy group_by_length=false length_column_name "
     "auto_find_batch_size=false"},
    {"model.path has the tokenizer, its special tokens and the configuration; no code beside a model is run",
     "trust_remote_code=false model_revision=main revision model_init_kwargs eos_token pad_token"},
    {"answers come from the engine built in, or from rollout.servers",
     "use_vllm=false vllm_{mode,model_impl,enable_sleep_mode,structured_outputs_regex,server_base_url,server_host,"
     "server_port,server_timeout,group_port,gpu_memory_utilization,max_model_length,tensor_parallel_size} "
     "use_transformers_{paged,continuous_batching}=false transformers_continuous_batching_config cache_implementation "
     "ds3_gather_for_generation use_cache=false"},
    {"algorithm.rollout_correction.rollout_is and algorithm.rollout_correction.rollout_is_threshold are it",
     "vllm_importance_sampling_{correction,mode,clip_max,clip_min,cap}"},
    {"resources.pools and resources.roles say what runs where",
     "fsdp fsdp_config deepspeed local_rank=-1 accelerator_config parallelism_config ddp_{find_unused_parameters,"
     "bucket_cap_mb,broadcast_buffers,static_graph,backend,timeout} average_tokens_across_devices=true world_size"},
    {"it does not change results, and each operation has one implementation",
     "attn_implementation use_liger_kernel=false liger_kernel_config torch_compile=false torch_compile_backend "
     "torch_compile_mode torch_empty_cache_steps precompute_ref_log_probs=false precompute_ref_batch_size "
     "full_determinism=false ignore_bias_buffers=false"},
    {"adapters are saved in PEFT's layout; see model.lora_rank",
     "{,model.}{task_type,lora_task_type,peft_type,inference_mode,auto_mapping,peft_version,base_model_name_or_path,"
     "fan_in_fan_out,runtime_config,megatron_config,megatron_core,ensure_weight_tying}"},
    {"a run writes its folder and nothing else: trainer.run_dir",
     "logging_{dir,steps,strategy,first_step,nan_inf_filter} "
     "log_{level,level_replica,on_each_node,completions,multimodal,"
     "unique_prompts,completions_hub_repo} num_completions_to_print report_to run_name exp_name project "
     "trackio_{space_id,bucket_id,static_space_id} disable_tqdm push_to_hub=false "
     "hub_{token,model_id,private_repo,strategy,"
     "always_push,revision} include_num_input_tokens_seen include_for_metrics batch_eval_metrics skip_memory_metrics "
     "debug"},
};

constexpr ForeignKeys kTrlRefusedKeys[] = {
    {"set data.train_batch_size and actor.ppo_mini_batch_size, in prompts, and actor.ppo_micro_batch_size_per_gpu for "
     "the samples of a pass",
     "per_device_train_batch_size gradient_accumulation_steps=1 generation_batch_size steps_per_generation "
     "num_mini_batches=1 mini_batch_size batch_size"},
    {"set data.train_batch_size to the samples of an optimizer step, over all passes and processes, and "
     "data.micro_batch_size_per_gpu to the samples of a pass",
     "per_device_train_batch_size gradient_accumulation_steps=1 batch_size"},
    {"set trainer.total_training_steps, in steps of data.train_batch_size prompts",
     "max_steps=-1 total_episodes num_total_batches"},
    {"set actor.optim.lr_warmup_steps, in steps", "warmup_ratio=0"},
    {"set optim.lr_warmup_steps, in steps", "warmup_ratio=0"},
    {"the optimizer is AdamW, with an epsilon of 1e-8", "adam_epsilon=1e-8 optim_args optim_target_modules"},
    {"set model.compute_dtype, and model.param_dtype for the weights", "{,torch_}dtype=float32"},
    {"set model.lora_rank, model.lora_alpha and model.target_modules for adapters; without them there are none",
     "use_peft=false"},
    {"linear layers in model.target_modules get adapters, with model.lora_rank and model.lora_alpha",
     "{,model.}bias=none "
     "{,model.}{lora_bias,use_rslora,use_dora,use_qalora,use_bdlora}=false "
     "{,model.}init_lora_weights=true "
     "{,model.}{qalora_group_size,rank_pattern,alpha_pattern,layers_to_transform,layers_pattern,"
     "layer_replication,trainable_token_indices,target_parameters,lora_target_parameters,loftq_config,eva_config,"
     "corda_config,lora_ga_config,velora_config,monteclora_config,arrow_config,kasa_config,alora_invocation_tokens} "
     "exclude_modules"},
    {"weights are not quantized while they are trained; set model.param_dtype to bfloat16",
     "load_in_{4bit,8bit}=false bnb_4bit_{quant_type,quant_storage,compute_dtype} use_bnb_nested_quant=false"},
    {"set data.train_files, or data.name for a data set in the hub's cache", "dataset_name dataset_config datasets"},
    {"set data.split", "dataset_train_split=train"},
    {"set data.train_on", "assistant_only_loss=true completion_only_loss=true"},
    {"set data.template", "chat_template_path"},
    {"set data.template_variables", "chat_template_kwargs"},
    {"samples are packed into rows anyway, and data.train_batch_size counts samples", "packing=false"},
    {"longer sequences lose their end: data.max_length", "truncation_mode=keep_start"},
    {"set reward.function to FILE.py:NAME", "reward_funcs"},
    {"set algorithm.clip_score", "reward_clip_range"},
    {"set algorithm.norm_adv", "normalize_advantages=false"},
    {"the critic has an optimizer of its own: critic.optim.lr", "vf_coef"},
    {"nothing of a distribution is left out when a token is sampled; see rollout.temperature",
     "top_p=1 top_k=0,-1 min_p=0 repetition_penalty=1 generation_kwargs"},
    {"set trainer.best_metric and trainer.best_mode",
     "load_best_model_at_end=false metric_for_best_model greater_is_better"},
    {"set trainer.resume_mode and trainer.resume_from_path", "resume_from_checkpoint"},
    {"the reference is the model as the run begins",
     "sync_ref_model=false ref_model_{mixup_alpha,sync_steps} "
     "reference_free=false ref_model_name_or_path"},
    {"there is nothing like it here",
     "whiten_rewards=false mask_truncated_completions=false missing_eos_penalty stop_token stop_token_id "
     "multi_objective_aggregation=sum_then_normalize top_entropy_quantile=1 use_adaptive_entropy=false "
     "entropy_coef_min "
     "entropy_coef_max entropy_coef_delta entropy_target off_policy_mask_threshold use_bias_correction_kl=false "
     "max_tool_calling_iterations cast_lm_head_to_fp32=false label_smoothing_factor=0 neftune_noise_alpha "
     "router_aux_loss_coef ld_alpha loss_weights f_divergence_type=reverse_kl f_alpha_divergence_coef "
     "use_weighting=false "
     "discopop_tau train_sampling_strategy=random"},
};

}  // namespace

std::span<const OtherName> TrlNames() { return kTrlNames; }
std::span<const OtherName> TrlOptimNames() { return kTrlOptimNames; }
std::span<const ForeignKeys> TrlIgnoredKeys() { return kTrlIgnoredKeys; }
std::span<const ForeignKeys> TrlRefusedKeys() { return kTrlRefusedKeys; }

}  // namespace tdock::trainer
