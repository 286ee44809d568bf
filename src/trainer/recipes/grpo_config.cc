#include "trainer/recipes/grpo_config.h"

#include "absl/strings/str_cat.h"
#include "model/files/config.h"

namespace tdock::trainer {
namespace {

// A limit beyond what memory can hold, and small enough that products of two do not overflow.
constexpr int64_t kMaxBatch = int64_t{1} << 20;

void BindOptim(config::Spec& spec, const std::string& prefix, OptimConfig& c) {
  spec.Float(prefix + ".lr", &c.lr, "Peak learning rate of AdamW.").MoreThan(0);
  spec.Float(prefix + ".beta1", &c.beta1, "AdamW's decay of the first moment.").AtLeast(0).LessThan(1);
  spec.Float(prefix + ".beta2", &c.beta2, "AdamW's decay of the second moment.").AtLeast(0).LessThan(1);
  spec.Float(prefix + ".weight_decay", &c.weight_decay, "Decoupled weight decay of matrices.").AtLeast(0);
  spec.Float(prefix + ".clip_grad", &c.clip_grad, "Gradients are clipped to this global norm; 0: no clipping.")
      .AtLeast(0);
  spec.Int(prefix + ".lr_warmup_steps", &c.lr_warmup_steps, "Steps over which the learning rate rises to its peak.")
      .AtLeast(0);
  spec.Choice(prefix + ".lr_scheduler_type", &c.lr_scheduler_type,
              {{"constant", LrDecay::kConstant}, {"linear", LrDecay::kLinear}, {"cosine", LrDecay::kCosine}},
              "How the learning rate decays after its peak.");
  spec.Float(prefix + ".min_lr_ratio", &c.min_lr_ratio, "Final learning rate as a fraction of the peak.")
      .AtLeast(0)
      .AtMost(1);
}

void BindModel(config::Spec& spec, GrpoConfig& c) {
  spec.String("model.path", &c.model.path,
              "Folder of a model in the Hugging Face layout to start from; empty: random weights with the sizes below, "
              "which cannot be combined with it.");
  spec.Int("model.hidden_size", &c.model.hidden_size, "Width of the residual stream.")
      .AtLeast(1)
      .AtMost(model::kMaxSize);
  spec.Int("model.intermediate_size", &c.model.intermediate_size, "Width inside the MLP.")
      .AtLeast(1)
      .AtMost(model::kMaxSize);
  spec.Int("model.num_hidden_layers", &c.model.num_hidden_layers, "Layers.").AtLeast(1).AtMost(model::kMaxLayers);
  spec.Int("model.num_attention_heads", &c.model.num_attention_heads, "Query heads.")
      .AtLeast(1)
      .AtMost(model::kMaxHeads);
  spec.Int("model.num_key_value_heads", &c.model.num_key_value_heads, "Key and value heads.")
      .AtLeast(1)
      .AtMost(model::kMaxHeads);
  spec.Int("model.max_position_embeddings", &c.model.max_position_embeddings, "Longest sequence, in tokens.")
      .AtLeast(2)
      .AtMost(model::kMaxPositions);
  spec.Float("model.rms_norm_eps", &c.model.rms_norm_eps, "Added to the mean square in RMSNorm.").MoreThan(0);
  spec.Float("model.rope_theta", &c.model.rope_theta, "Base of the rotary frequencies.").MoreThan(0);
  spec.Bool("model.tie_word_embeddings", &c.model.tie_word_embeddings,
            "The output head shares the embedding's weights.");
  BindModelOptions(spec, c.model);
  spec.Check({"model.lora_rank", "model.path"}, [&c]() -> std::vector<std::string> {
    if (c.model.lora_rank == 0 || !c.model.path.empty()) return {};
    return {"adapters need a model to adapt: set model.path"};
  });

  spec.Check({"model.hidden_size", "model.num_attention_heads"}, [&c]() -> std::vector<std::string> {
    if (c.model.hidden_size % (2 * c.model.num_attention_heads) == 0) return {};
    return {"the heads must divide the width into even parts, for the rotary embedding"};
  });
  spec.Check({"model.num_attention_heads", "model.num_key_value_heads"}, [&c]() -> std::vector<std::string> {
    if (c.model.num_attention_heads % c.model.num_key_value_heads == 0) return {};
    return {"the query heads must be a multiple of the key and value heads"};
  });
  spec.Unused(
      {"model.hidden_size", "model.intermediate_size", "model.num_hidden_layers", "model.num_attention_heads",
       "model.num_key_value_heads", "model.max_position_embeddings", "model.rms_norm_eps", "model.rope_theta",
       "model.tie_word_embeddings"},
      [&c] { return !c.model.path.empty(); }, "given together with model.path, whose model has its own");
}

void BindWarmup(config::Spec& spec, GrpoConfig& c) {
  spec.Int("warmup.batch_size", &c.warmup.batch_size, "Problems per step of the supervised warm-up.")
      .AtLeast(1)
      .AtMost(kMaxBatch);
  spec.Int("warmup.max_steps", &c.warmup.max_steps, "Maximum number of steps of the warm-up; 0: no warm-up.")
      .AtLeast(0);
  spec.Float("warmup.target_accuracy", &c.warmup.target_accuracy,
             "The warm-up ends once the greedy accuracy on the validation problems is this high.")
      .AtLeast(0)
      .AtMost(1);
  spec.Int("warmup.test_freq", &c.warmup.test_freq, "Steps from one validation to the next.").AtLeast(1);
  BindOptim(spec, "warmup.optim", c.warmup.optim);
}

void BindActor(config::Spec& spec, GrpoConfig& c) {
  spec.Int("actor.ppo_mini_batch_size", &c.actor.ppo_mini_batch_size,
           "Prompts per optimizer step, each with rollout.n samples.")
      .AtLeast(1)
      .AtMost(kMaxBatch);
  spec.Int("actor.ppo_micro_batch_size_per_gpu", &c.actor.ppo_micro_batch_size_per_gpu,
           "Samples in one forward and backward pass; limits memory and does not change results; 0: the whole "
           "mini-batch.")
      .AtLeast(0);
  spec.Float("actor.clip_ratio_low", &c.actor.clip_ratio_low, "The ratio is clipped at 1 minus this.")
      .AtLeast(0)
      .AtMost(1);
  spec.Float("actor.clip_ratio_high", &c.actor.clip_ratio_high, "The ratio is clipped at 1 plus this.").AtLeast(0);
  spec.Float("actor.kl_loss_coef", &c.actor.kl_loss_coef, "Weight of the KL to the reference model in the loss.")
      .AtLeast(0);
  spec.Choice("actor.kl_loss_type", &c.actor.kl_loss_type,
              {{"k1", algo::KlEstimator::kK1},
               {"abs", algo::KlEstimator::kAbs},
               {"k2", algo::KlEstimator::kK2},
               {"k3", algo::KlEstimator::kK3}},
              "Estimator of the KL: −x, abs(x), x²/2 or eˣ−x−1, where x is the reference's log-probability minus the "
              "policy's.");
  spec.Int("actor.max_row_tokens", &c.actor.max_row_tokens,
           "Samples are packed into rows of up to this many tokens, where samples of one prompt share it; does not "
           "change "
           "results; 0: a third of the model's width, where attention is a small part of the work.")
      .AtLeast(0);
  BindOptim(spec, "actor.optim", c.actor.optim);
  spec.Check({"actor.ppo_mini_batch_size", "data.train_batch_size"}, [&c]() -> std::vector<std::string> {
    if (c.data.train_batch_size % c.actor.ppo_mini_batch_size == 0) return {};
    return {"the mini-batch must divide the batch"};
  });
  spec.Check({"actor.ppo_micro_batch_size_per_gpu", "actor.ppo_mini_batch_size", "rollout.n"},
             [&c]() -> std::vector<std::string> {
               const int64_t micro = c.actor.ppo_micro_batch_size_per_gpu;
               const int64_t samples = c.actor.ppo_mini_batch_size * c.rollout.n;
               if (micro == 0 || samples % micro == 0) return {};
               return {absl::StrCat("the micro-batch must divide the ", samples, " samples of a mini-batch")};
             });
}

void BindTrainer(config::Spec& spec, GrpoConfig& c) {
  spec.Int("trainer.total_training_steps", &c.trainer.total_training_steps, "Steps of GRPO.").AtLeast(0);
  spec.Int("trainer.test_freq", &c.trainer.test_freq,
           "Steps from one measurement of the held-out accuracy to the next; it is also measured at the end.")
      .AtLeast(1);
  spec.Int("trainer.log_val_generations", &c.trainer.log_val_generations,
           "Held-out answers recorded at each measurement.")
      .AtLeast(0);
  spec.String("trainer.run_dir", &c.trainer.run_dir,
              "Folder of the run, which must be new or empty; empty: the next free runs/grpo-NNN.");
}

}  // namespace

GrpoConfig::GrpoConfig() {
  warmup.optim.lr = 1e-3;
  warmup.optim.beta2 = 0.99;
  actor.optim.lr = 4e-4;
  actor.optim.beta2 = 0.99;
  actor.optim.lr_warmup_steps = 20;
  actor.optim.lr_scheduler_type = LrDecay::kLinear;
  actor.optim.min_lr_ratio = 0.1;
}

void Bind(config::Spec& spec, GrpoConfig& c) {
  spec.Choice("recipe", &c.recipe, {{"grpo", std::string("grpo")}}, "The recipe.");
  spec.Int("seed", &c.seed, "Seed of everything random: weights, data order, sampling.").AtLeast(0);
  spec.String("device", &c.device, "cpu, cuda, or cuda:N.").NotEmpty();
  spec.Int("threads", &c.threads,
           "Threads that work on different samples in parallel; 0: one per core, or one if the device is "
           "a GPU.")
      .AtLeast(0)
      .AtMost(1024);
  spec.Int("intra_op_threads", &c.intra_op_threads,
           "Threads per operation on the CPU. More than one pays off for large models on an idle machine.")
      .AtLeast(1)
      .AtMost(1024);
  BindModel(spec, c);
  spec.Choice("data.task", &c.data.task, {{"addition", Task::kAddition}}, "The task: two-digit addition.");
  spec.Int("data.train_batch_size", &c.data.train_batch_size, "Prompts per step.").AtLeast(1).AtMost(kMaxBatch);
  spec.Int("data.max_response_length", &c.data.max_response_length,
           "Maximum number of tokens of an answer, including its end token.")
      .AtLeast(1)
      .AtMost(model::kMaxPositions);
  BindWarmup(spec, c);
  spec.Int("rollout.n", &c.rollout.n, "Samples per prompt: the group that advantages are relative to.")
      .AtLeast(1)
      .AtMost(kMaxBatch);
  spec.Check({"data.train_batch_size", "rollout.n"}, [&c]() -> std::vector<std::string> {
    if (c.samples_per_step() <= kMaxBatch) return {};
    return {absl::StrCat("a step has ", c.samples_per_step(), " samples; at most ", kMaxBatch, " are possible")};
  });
  spec.Float("rollout.temperature", &c.rollout.temperature, "Temperature of sampling and of all log-probabilities.")
      .MoreThan(0);
  spec.Int("rollout.max_num_seqs", &c.rollout.max_num_seqs, "Samples generated at the same time.")
      .AtLeast(1)
      .AtMost(kMaxBatch);
  BindActor(spec, c);
  spec.Int("ref.log_prob_micro_batch_size_per_gpu", &c.ref.log_prob_micro_batch_size_per_gpu,
           "Samples in one forward pass of the reference and old log-probabilities; 0: all at once.")
      .AtLeast(0);
  BindTrainer(spec, c);
}

}  // namespace tdock::trainer
