// The columns and consumers of the original's docks.
#include "tdock/compat/mindspeed.h"

namespace tdock {

MindSpeedOptions GrpoDock(int64_t prompts_num, int64_t n_samples_per_prompt) {
  MindSpeedOptions options{.prompts_num = prompts_num, .n_samples_per_prompt = n_samples_per_prompt};
  options.columns = {
      "prompts",      "prompt_length",    "responses",     "response_length", "attention_mask",      "labels",
      "input_ids",    "input_ids_length", "actor_rollout", "rm_scores",       "token_level_rewards", "old_log_prob",
      "ref_log_prob", "advantages",       "returns"};
  options.consumers = {{.name = "trainer"},
                       {.name = "actor_rollout", .writes = {"responses", "input_ids", "response_length"}},
                       {.name = "actor_image_embeds"},
                       {.name = "actor_log_prob", .writes = {"old_log_prob"}},
                       {.name = "ref_log_prob", .writes = {"ref_log_prob"}},
                       {.name = "actor_train"},
                       {.name = "compute_advantage", .writes = {"advantages", "returns"}},
                       {.name = "rule_reward", .writes = {"rm_scores"}},
                       {.name = "reward_scores", .writes = {"rm_scores"}},
                       {.name = "grpo_metrics"}};
  return options;
}

MindSpeedOptions PpoDock(int64_t prompts_num, int64_t n_samples_per_prompt) {
  MindSpeedOptions options = GrpoDock(prompts_num, n_samples_per_prompt);
  options.columns.push_back("values");
  options.consumers.push_back({.name = "compute_kl", .writes = {"token_level_rewards"}});
  options.consumers.push_back({.name = "critic_train"});
  options.consumers.push_back({.name = "critic_compute_values", .writes = {"values"}});
  options.consumers.push_back({.name = "ppo_metrics"});
  return options;
}

MindSpeedOptions DapoDock(int64_t prompts_num, int64_t n_samples_per_prompt) {
  MindSpeedOptions options = GrpoDock(prompts_num, n_samples_per_prompt);
  options.columns.push_back("metric_for_dapo");
  options.consumers.push_back({.name = "dynamic_sampling"});
  options.consumers.push_back({.name = "dapo_metrics"});
  return options;
}

MindSpeedOptions TransferDock(int64_t prompts_num, int64_t n_samples_per_prompt, std::vector<std::string> columns) {
  return {.prompts_num = prompts_num, .n_samples_per_prompt = n_samples_per_prompt, .columns = std::move(columns)};
}

}  // namespace tdock
