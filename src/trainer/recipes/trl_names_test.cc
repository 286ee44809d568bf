// Configurations of TRL and PEFT.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "trainer/recipes/testing/loaded_recipe.h"

namespace tdock::trainer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A value under TRL's name, and the key that has it here.
struct Same {
  const char* recipe;
  const char* given;
  const char* key;
  const char* value;
};

constexpr Same kSame[] = {
    {"sft", "learning_rate=0.5", "optim.lr", "0.5"},
    {"sft", "warmup_steps=7", "optim.lr_warmup_steps", "7"},
    {"sft", "lr_scheduler_type=cosine", "optim.lr_scheduler_type", "cosine"},
    {"sft", "weight_decay=0.25", "optim.weight_decay", "0.25"},
    {"sft", "max_grad_norm=0.5", "optim.clip_grad", "0.5"},
    {"sft", "adam_beta1=0.5", "optim.beta1", "0.5"},
    {"sft", "adam_beta2=0.5", "optim.beta2", "0.5"},
    {"sft", "num_train_epochs=3", "trainer.total_epochs", "3"},
    {"sft", "max_steps=9", "trainer.total_training_steps", "9"},
    {"sft", "max_steps=-1", "trainer.total_training_steps", "0"},
    {"sft", "max_length=64", "data.max_length", "64"},
    {"sft", "max_seq_length=64", "data.max_length", "64"},
    {"sft", "dataset_text_field=body", "data.columns.text", "body"},
    {"sft", "gradient_checkpointing=true", "model.recompute", "layers"},
    {"sft", "gradient_checkpointing=false", "model.recompute", "nothing"},
    {"sft", "activation_checkpointing=true", "model.recompute", "layers"},
    {"sft", "bf16=true", "model.compute_dtype", "bfloat16"},
    {"sft", "bf16=false", "model.compute_dtype", "float32"},
    {"sft", "fp16=True", "model.compute_dtype", "float16"},
    {"sft", "seed=3", "seed", "3"},
    {"sft", "data_seed=3", "data.seed", "3"},
    {"sft", "output_dir=out", "trainer.run_dir", "out"},
    {"sft", "save_steps=50", "trainer.save_freq", "\"50\""},
    {"sft", "save_total_limit=5", "trainer.max_checkpoints_to_keep", "5"},
    {"sft", "eval_steps=50", "trainer.test_freq", "50"},
    {"sft", "model_name_or_path=m", "model.path", "m"},
    {"sft", "lora_r=8", "model.lora_rank", "8"},
    {"sft", "r=8", "model.lora_rank", "8"},
    {"sft", "model.lora_r=8", "model.lora_rank", "8"},
    {"sft", "lora_alpha=32", "model.lora_alpha", "32.0"},
    {"sft", "lora_dropout=0.25", "model.lora_dropout", "0.25"},
    {"sft", "target_modules=[q_proj, v_proj]", "model.target_modules", "\"q_proj,v_proj\""},
    {"sft", "lora_target_modules=[q_proj]", "model.target_modules", "q_proj"},
    {"sft", "target_modules=all-linear", "model.target_modules", "\"\""},
    {"rm", "center_rewards_coefficient=0.25", "loss.centre_coef", "0.25"},
    {"rm", "learning_rate=0.5", "optim.lr", "0.5"},
    {"dpo", "beta=0.25", "dpo.beta", "0.25"},
    {"dpo", "loss_type=robust", "dpo.loss_type", "robust"},
    {"dpo", "loss_type=ipo", "dpo.average_log_prob", "true"},
    {"dpo", "loss_type=sigmoid", "dpo.average_log_prob", "false"},
    {"dpo", "label_smoothing=0.25", "dpo.label_smoothing", "0.25"},
    {"grpo", "learning_rate=0.5", "actor.optim.lr", "0.5"},
    {"grpo", "optim.lr=0.5", "actor.optim.lr", "0.5"},
    {"grpo", "num_generations=4", "rollout.n", "4"},
    {"grpo", "temperature=0.5", "rollout.temperature", "0.5"},
    {"grpo", "max_completion_length=32", "data.max_response_length", "32"},
    {"grpo", "max_prompt_length=32", "data.max_prompt_length", "32"},
    {"grpo", "beta=0.25", "actor.kl_loss_coef", "0.25"},
    {"grpo", "num_iterations=2", "actor.ppo_epochs", "2"},
    {"grpo", "epsilon=0.25", "actor.clip_ratio_low", "0.25"},
    {"grpo", "epsilon=0.25", "actor.clip_ratio_high", "0.25"},
    {"grpo", "epsilon_high=0.5", "actor.clip_ratio_high", "0.5"},
    {"grpo", "delta=1.5", "actor.clip_ratio_c", "1.5"},
    {"grpo", "loss_type=grpo", "actor.loss_agg_mode", "seq-mean-token-mean"},
    {"grpo", "loss_type=dapo", "actor.loss_agg_mode", "token-mean"},
    {"grpo", "loss_type=bnpo", "actor.loss_agg_mode", "token-mean"},
    {"grpo", "loss_type=dr_grpo", "actor.loss_agg_mode", "seq-mean-token-sum-norm"},
    {"grpo", "loss_type=sapo", "actor.policy_loss.loss_mode", "sapo"},
    {"grpo", "importance_sampling_level=sequence", "actor.policy_loss.loss_mode", "gspo"},
    {"grpo", "importance_sampling_level=token", "actor.policy_loss.loss_mode", "vanilla"},
    {"grpo", "scale_rewards=none", "algorithm.norm_adv_by_std_in_grpo", "false"},
    {"grpo", "scale_rewards=group", "algorithm.norm_adv_by_std_in_grpo", "true"},
    {"grpo", "scale_rewards=false", "algorithm.norm_adv_by_std_in_grpo", "false"},
    {"grpo", "reward_weights=[1, 0.5]", "reward.function_weights", "[\"1\", \"0.5\"]"},
    {"ppo", "learning_rate=0.5", "actor.optim.lr", "0.5"},
    {"ppo", "learning_rate=0.5", "critic.optim.lr", "0.5"},
    {"ppo", "num_ppo_epochs=2", "actor.ppo_epochs", "2"},
    {"ppo", "kl_coef=0.25", "algorithm.kl_ctrl.kl_coef", "0.25"},
    {"ppo", "kl_estimator=k3", "algorithm.kl_penalty", "k3"},
    {"ppo", "cliprange=0.25", "actor.clip_ratio_high", "0.25"},
    {"ppo", "cliprange_value=0.25", "critic.cliprange_value", "0.25"},
    {"ppo", "gamma=0.5", "algorithm.gamma", "0.5"},
    {"ppo", "lam=0.5", "algorithm.lam", "0.5"},
    {"ppo", "response_length=32", "data.max_response_length", "32"},
    {"ppo", "reward_model_path=rm", "reward_model.model.path", "rm"},
};

// Settings that the keys below need beside themselves, in one recipe or another.
constexpr char kNeeded[] = R"(
model: {path: m, lora_rank: 4}
critic.model.path: c
reward.function: [a.py:f, b.py:g]
actor.loss_agg_mode: seq-mean-token-mean
)";

TEST(TrlNames, StandForTheKeysThatMeanTheSame) {
  for (const Same& same : kSame) {
    const LoadedRecipe loaded = LoadAs(same.recipe, kNeeded, {same.given});
    EXPECT_EQ(loaded.Value(same.key), same.value) << same.recipe << ": " << same.given;
    EXPECT_THAT(loaded.status.message(), testing::Not(HasSubstr("command line: "))) << same.given;
  }
}

TEST(TrlNames, LoadTogetherFromAFile) {
  const LoadedRecipe loaded = LoadAs("sft", R"(
model_name_or_path: m
learning_rate: 2.0e-4
lora_r: 8
lora_alpha: 16
lora_target_modules: [q_proj, v_proj]
bf16: true
gradient_checkpointing: true
gradient_checkpointing_kwargs: {use_reentrant: false}
packing: false
logging_steps: 10
report_to: none
save_strategy: steps
eval_strategy: "no"
output_dir: out
)",
                                     {}, /*lenient=*/true);
  EXPECT_THAT(loaded.violations(), IsEmpty());
  EXPECT_EQ(loaded.Value("optim.lr"), "0.0002");
  EXPECT_EQ(loaded.notes.size(), 4u);
}

// A name that cannot be taken over, and a key that the message must name.
struct Told {
  const char* recipe;
  const char* given;
  const char* key;
};

constexpr Told kTold[] = {
    {"sft", "per_device_train_batch_size=8", "data.train_batch_size"},
    {"sft", "per_device_train_batch_size=8", "data.micro_batch_size_per_gpu"},
    {"sft", "gradient_accumulation_steps=4", "data.train_batch_size"},
    {"sft", "trainer.gradient_accumulation_steps=4", "data.train_batch_size"},
    {"sft", "optim.learning_rate=1e-4", "optim.lr"},
    {"sft", "warmup_ratio=0.1", "optim.lr_warmup_steps"},
    {"sft", "optim=adamw_torch", "optim.lr"},
    {"sft", "dtype=bfloat16", "model.compute_dtype"},
    {"sft", "torch_dtype=bfloat16", "model.param_dtype"},
    {"sft", "use_peft=true", "model.lora_rank"},
    {"sft", "use_rslora=true", "model.lora_alpha"},
    {"sft", "bias=all", "model.target_modules"},
    {"sft", "dataset_name=trl-lib/Capybara", "data.train_files"},
    {"sft", "assistant_only_loss=false", "data.train_on"},
    {"sft", "packing=true", "data.train_batch_size"},
    {"sft", "save_strategy=epoch", "trainer.save_freq"},
    {"sft", "eval_strategy=epoch", "trainer.test_freq"},
    {"sft", "load_best_model_at_end=true", "trainer.best_metric"},
    {"sft", "resume_from_checkpoint=x", "trainer.resume_from_path"},
    {"sft", "load_in_4bit=true", "model.param_dtype"},
    {"sft", "logging_steps=5", "trainer.run_dir"},
    {"dpo", "per_device_train_batch_size=8", "data.train_batch_size"},
    {"rm", "warmup_ratio=0.1", "optim.lr_warmup_steps"},
    {"grpo", "per_device_train_batch_size=8", "actor.ppo_mini_batch_size"},
    {"grpo", "gradient_accumulation_steps=4", "actor.ppo_micro_batch_size_per_gpu"},
    {"grpo", "generation_batch_size=64", "data.train_batch_size"},
    {"grpo", "max_steps=10", "trainer.total_training_steps"},
    {"grpo", "warmup_ratio=0.1", "actor.optim.lr_warmup_steps"},
    {"grpo", "reward_funcs=[accuracy_reward]", "reward.function"},
    {"grpo", "use_vllm=true", "rollout.servers"},
    {"grpo", "top_p=0.9", "rollout.temperature"},
    {"grpo", "loss_type=cispo", "actor.loss_agg_mode"},
    {"grpo", "optim=adamw_torch", "optim.lr"},
    {"grpo", "actor.optim.learning_rate=1e-6", "actor.optim.lr"},
    {"ppo", "total_episodes=1000", "trainer.total_training_steps"},
    {"ppo", "vf_coef=0.1", "critic.optim.lr"},
    {"ppo", "num_mini_batches=4", "actor.ppo_mini_batch_size"},
};

TEST(TrlNames, WithoutAKeyHereAreRefusedWithTheKeyThatIsMeant) {
  for (const Told& told : kTold) {
    const LoadedRecipe loaded = LoadAs(told.recipe, "model.path: m\ncritic.model.path: c\n", {told.given});
    const std::string name(told.given, std::string(told.given).find('='));
    EXPECT_THAT(loaded.status.message(), Mentions({absl::StrCat("command line: ", name), told.key}))
        << told.recipe << ": " << told.given;
    EXPECT_TRUE(loaded.spec.Find(told.key) != nullptr || told.key == std::string("optim.lr")) << told.key;
  }
}

TEST(TrlNames, GivenTwiceWithDifferentValuesAreRefused) {
  EXPECT_THAT(
      LoadAs("sft", "model: {path: m, compute_dtype: float32}\nbf16: true\n").violations(),
      ElementsAre(Mentions({"run.yaml:2: bf16 (model.compute_dtype here)", "model.compute_dtype (run.yaml:1)"})));
}

TEST(TrlNames, WithAValueThatIsNoSwitchAreRefused) {
  EXPECT_THAT(LoadAs("sft", "model.path: m", {"bf16=maybe"}).violations(),
              ElementsAre(Mentions({"bf16 (model.compute_dtype here)", "\"maybe\"", "bfloat16"})));
}

}  // namespace
}  // namespace tdock::trainer
