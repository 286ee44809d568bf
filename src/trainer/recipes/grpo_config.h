// The configuration of the GRPO recipe.
#pragma once

#include <cstdint>
#include <string>

#include "core/config/spec.h"
#include "trainer/algo/kl.h"
#include "trainer/recipes/model_options.h"
#include "trainer/stages/optimizer.h"

namespace tdock::trainer {

enum class Task { kAddition };

struct OptimConfig {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double weight_decay = 0.01;
  double clip_grad = 1.0;
  int64_t lr_warmup_steps = 0;
  LrDecay lr_scheduler_type = LrDecay::kConstant;
  double min_lr_ratio = 0.0;

  AdamWOptions adamw() const {
    return {.beta1 = beta1, .beta2 = beta2, .weight_decay = weight_decay, .clip_grad = clip_grad};
  }
  LrSchedule schedule(int64_t total_steps) const {
    return {lr_scheduler_type, lr_warmup_steps, total_steps, min_lr_ratio};
  }
};

struct GrpoConfig {
  std::string recipe = "grpo";
  int64_t seed = 1;
  std::string device = "cpu";
  int64_t threads = 0;
  int64_t intra_op_threads = 1;

  struct : ModelOptions {
    std::string path;
    int64_t hidden_size = 96;
    int64_t intermediate_size = 256;
    int64_t num_hidden_layers = 4;
    int64_t num_attention_heads = 4;
    int64_t num_key_value_heads = 4;
    int64_t max_position_embeddings = 64;
    double rms_norm_eps = 1e-6;
    double rope_theta = 10000.0;
    bool tie_word_embeddings = true;
  } model;

  struct {
    Task task = Task::kAddition;
    int64_t train_batch_size = 128;
    int64_t max_response_length = 8;
  } data;

  struct {
    int64_t batch_size = 256;
    int64_t max_steps = 500;
    double target_accuracy = 0.30;
    int64_t test_freq = 5;
    OptimConfig optim;
  } warmup;

  struct {
    int64_t n = 8;
    double temperature = 1.0;
    int64_t max_num_seqs = 4096;
  } rollout;

  struct {
    int64_t ppo_mini_batch_size = 32;
    int64_t ppo_micro_batch_size_per_gpu = 0;
    double clip_ratio_low = 0.2;
    double clip_ratio_high = 0.2;
    double kl_loss_coef = 0.02;
    algo::KlEstimator kl_loss_type = algo::KlEstimator::kK3;
    int64_t max_row_tokens = 0;
    OptimConfig optim;
  } actor;

  struct {
    int64_t log_prob_micro_batch_size_per_gpu = 0;
  } ref;

  struct {
    int64_t total_training_steps = 200;
    int64_t test_freq = 20;
    int64_t log_val_generations = 16;
    std::string run_dir;
  } trainer;

  GrpoConfig();

  // The number of samples of one step.
  int64_t samples_per_step() const { return data.train_batch_size * rollout.n; }
};

// Binds every key to its field and adds the constraints between them.
void Bind(config::Spec& spec, GrpoConfig& config);

}  // namespace tdock::trainer
