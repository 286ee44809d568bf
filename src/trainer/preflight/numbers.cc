#include "trainer/preflight/numbers.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "model/files/config.h"
#include "trainer/recipes/actor_section.h"
#include "trainer/recipes/recipes.h"

namespace tdock::trainer {
namespace {

// verl's default of the tokens of a pass.
constexpr int64_t kMaxTokensPerPass = 16384;

absl::StatusOr<model::ModelConfig> ReadModelConfig(const ModelSection& section, Env& env) {
  TDOCK_ASSIGN_OR_RETURN(const std::string json,
                         ReadFileUpTo(env, JoinPath(section.path, "config.json"), model::kMaxConfigBytes));
  TDOCK_ASSIGN_OR_RETURN(model::ModelConfig config, model::ParseModelConfig(json));
  const std::string rope = section.rope_scaling.json();
  if (!rope.empty()) TDOCK_RETURN_IF_ERROR(model::OverrideRope(rope, &config));
  return config;
}

// Reads the values of a recipe's own keys and of those that LoadRecipe() kept.
class NumberReader {
 public:
  explicit NumberReader(Recipe& recipe) : foreign_(recipe.config().foreign) { recipe.Bind(spec_); }

  // The first of the keys that has a value; `otherwise`, of no key, if none has.
  Setting First(std::initializer_list<const char*> keys, int64_t otherwise = 0) const {
    for (const char* key : keys) {
      const int64_t value = Integer(key);
      if (value != 0) return {value, key};
    }
    return {.value = otherwise};
  }

  bool IsOn(const char* key) const {
    if (const std::optional<std::string> own = config::ValueOf(spec_, key)) return *own == "true";
    const auto found = foreign_.flags.find(key);
    return found != foreign_.flags.end() && found->second;
  }

  int64_t Length(const char* key) const {
    const auto found = foreign_.lists.find(key);
    return found == foreign_.lists.end() ? 0 : static_cast<int64_t>(found->second.size());
  }

  double Number(const char* key) const {
    if (const std::optional<std::string> own = config::ValueOf(spec_, key)) {
      double value = 0;
      return absl::SimpleAtod(*own, &value) ? value : 0;
    }
    const auto found = foreign_.numbers.find(key);
    return found == foreign_.numbers.end() ? 0 : found->second;
  }

  bool Has(absl::string_view key) const { return spec_.Find(key) != nullptr; }

  // Whether MindSpeed-RL's keys about devices or sizes of dispatch are given.
  bool IsMindSpeed() const {
    for (const auto& [key, value] : foreign_.integers) {
      const bool is_theirs = absl::StartsWith(key, "rl_config.") || absl::StrContains(key, "_config.") ||
                             absl::StartsWith(key, "megatron_training.");
      if (is_theirs && value != 0) return true;
    }
    return false;
  }

  RoleNumbers Actor() const;
  RoleNumbers Reference(const RoleNumbers& actor) const;
  RoleNumbers Rollout(const RoleNumbers& actor) const;
  RoleNumbers Critic(const RoleNumbers& actor) const;
  RoleNumbers Reward() const;

 private:
  int64_t Integer(const char* key) const {
    if (const std::optional<std::string> own = config::ValueOf(spec_, key)) {
      int64_t value = 0;
      return absl::SimpleAtoi(*own, &value) ? value : 0;
    }
    const auto found = foreign_.integers.find(key);
    return found == foreign_.integers.end() ? 0 : found->second;
  }

  const ForeignValues& foreign_;
  config::Spec spec_;
};

// All devices, for each role.
Setting Devices(const NumberReader& reader) {
  const Setting npus = reader.First({"rl_config.actor_resource.num_npus"});
  if (npus.value > 0) return npus;
  const Setting per_node = reader.First({"trainer.n_gpus_per_node"}, 1);
  const Setting nodes = reader.First({"trainer.nnodes"}, 1);
  if (nodes.key.empty()) return per_node;
  return {per_node.value * nodes.value, per_node.key.empty() ? nodes.key : absl::StrCat(per_node.key, ", ", nodes.key)};
}

RoleNumbers NumberReader::Actor() const {
  RoleNumbers role{.role = "actor", .devices = Devices(*this)};
  role.tensor = First({"actor.megatron.tensor_model_parallel_size", "actor_config.tensor_model_parallel_size",
                       "megatron_training.tensor_model_parallel_size"},
                      1);
  role.pipeline = First({"actor.megatron.pipeline_model_parallel_size", "actor_config.pipeline_model_parallel_size",
                         "megatron_training.pipeline_model_parallel_size"},
                        1);
  role.context = First({"actor.megatron.context_parallel_size", "actor.ulysses_sequence_parallel_size",
                        "actor_config.context_parallel_size", "megatron_training.context_parallel_size"},
                       1);
  role.mini_batch = First({"actor.ppo_mini_batch_size"});
  if (role.mini_batch.value == 0 && Has("actor.ppo_mini_batch_size")) {
    const int64_t parts = First({"algorithm.generation_batches"}, 1).value;
    role.mini_batch = {DefaultMiniBatch(Integer("data.train_batch_size") / parts), "actor.ppo_mini_batch_size"};
  }
  role.micro_batch = First({"actor.ppo_micro_batch_size_per_gpu", "data.micro_batch_size_per_gpu"});
  role.all_micro = First({"actor.ppo_micro_batch_size"});
  role.dynamic = IsOn("actor.use_dynamic_bsz");
  role.max_tokens = First({"actor.ppo_max_token_len_per_gpu"});
  if (role.max_tokens.value == 0) role.max_tokens = {kMaxTokensPerPass, "actor.ppo_max_token_len_per_gpu"};
  return role;
}

// Falls back to the actor's devices, their division and its cap of tokens.
RoleNumbers NumberReader::Reference(const RoleNumbers& actor) const {
  RoleNumbers role{.role = "ref", .devices = First({"rl_config.reference_resource.num_npus"})};
  role.tensor = First({"ref.megatron.tensor_model_parallel_size", "ref_config.tensor_model_parallel_size"});
  role.pipeline = First({"ref.megatron.pipeline_model_parallel_size", "ref_config.pipeline_model_parallel_size"});
  role.context = First(
      {"ref.megatron.context_parallel_size", "ref.ulysses_sequence_parallel_size", "ref_config.context_parallel_size"});
  const std::pair<Setting*, const Setting*> fallbacks[] = {{&role.devices, &actor.devices},
                                                           {&role.tensor, &actor.tensor},
                                                           {&role.pipeline, &actor.pipeline},
                                                           {&role.context, &actor.context}};
  for (const auto& [setting, fallback] : fallbacks) {
    if (setting->value == 0) *setting = *fallback;
  }
  role.micro_batch = First({"ref.log_prob_micro_batch_size_per_gpu"});
  role.all_micro = First({"ref.log_prob_micro_batch_size"});
  role.dynamic = IsOn("ref.log_prob_use_dynamic_bsz");
  role.max_tokens = First({"ref.log_prob_max_token_len_per_gpu"});
  if (role.max_tokens.value == 0) role.max_tokens = actor.max_tokens;
  return role;
}

// The copies generate; the old log-probabilities, whose sizes its section has, are computed by the actor.
RoleNumbers NumberReader::Rollout(const RoleNumbers& actor) const {
  RoleNumbers role{.role = "rollout", .devices = actor.devices};
  role.tensor = First({"rollout.tensor_model_parallel_size", "generate_config.infer_tensor_parallel_size"}, 1);
  role.pipeline = First({"rollout.pipeline_model_parallel_size", "generate_config.infer_pipeline_parallel_size"}, 1);
  role.micro_batch = First({"rollout.log_prob_micro_batch_size_per_gpu"});
  role.all_micro = First({"rollout.log_prob_micro_batch_size"});
  role.dynamic = IsOn("rollout.log_prob_use_dynamic_bsz");
  role.max_tokens = First({"rollout.log_prob_max_token_len_per_gpu"});
  if (role.max_tokens.value == 0) role.max_tokens = actor.max_tokens;
  return role;
}

RoleNumbers NumberReader::Critic(const RoleNumbers& actor) const {
  RoleNumbers role{.role = "critic", .devices = First({"rl_config.critic_resource.num_npus"})};
  if (role.devices.value == 0) role.devices = actor.devices;
  role.tensor = First({"critic.megatron.tensor_model_parallel_size", "critic_config.tensor_model_parallel_size"}, 1);
  role.pipeline =
      First({"critic.megatron.pipeline_model_parallel_size", "critic_config.pipeline_model_parallel_size"}, 1);
  role.context = First({"critic.megatron.context_parallel_size", "critic.ulysses_sequence_parallel_size",
                        "critic_config.context_parallel_size"},
                       1);
  role.mini_batch = First({"critic.ppo_mini_batch_size"});
  if (role.mini_batch.value == 0) role.mini_batch = actor.mini_batch;
  role.micro_batch = First({"critic.ppo_micro_batch_size_per_gpu"});
  role.all_micro = First({"critic.ppo_micro_batch_size"});
  role.dynamic = IsOn("critic.use_dynamic_bsz");
  role.max_tokens = First({"critic.ppo_max_token_len_per_gpu"});
  if (role.max_tokens.value == 0) role.max_tokens = {2 * kMaxTokensPerPass, "critic.ppo_max_token_len_per_gpu"};
  return role;
}

// A model of rewards, on devices of its own.
RoleNumbers NumberReader::Reward() const {
  RoleNumbers role{.role = "reward", .devices = First({"rl_config.reward_resource.num_npus"})};
  role.tensor = First({"reward_config.tensor_model_parallel_size"}, 1);
  role.pipeline = First({"reward_config.pipeline_model_parallel_size"}, 1);
  role.context = First({"reward_config.context_parallel_size"}, 1);
  return role;
}

void AddRoles(const NumberReader& reader, RunNumbers& numbers) {
  const RoleNumbers actor = reader.Actor();
  numbers.roles.push_back(actor);
  if (reader.Has("rollout.n")) numbers.roles.push_back(reader.Rollout(actor));
  if (reader.Has("ref.log_prob_micro_batch_size_per_gpu")) numbers.roles.push_back(reader.Reference(actor));
  if (reader.Has("critic.ppo_mini_batch_size") || reader.First({"rl_config.critic_resource.num_npus"}).value > 0) {
    numbers.roles.push_back(reader.Critic(actor));
  }
  if (reader.First({"rl_config.reward_resource.num_npus"}).value > 0) {
    numbers.roles.push_back(reader.Reward());
  }
}

// Of the role, or 1 where it has no model.
int64_t RanksOf(const RunNumbers& numbers, absl::string_view role) {
  for (const RoleNumbers& candidate : numbers.roles) {
    if (candidate.role == role) return candidate.data_parallel();
  }
  return 1;
}

void AddDispatchSizes(const NumberReader& reader, RunNumbers& numbers) {
  struct Stage {
    const char* name;
    const char* key;
    const char* role;  // whose ranks share a batch; nullptr: one stage takes all
    bool groups;
    bool needs_role;  // it exists only where the role does
  };
  constexpr Stage kStages[] = {
      {"actor_rollout", "trainer.dispatch_size.rollout", "rollout", false, true},
      {"actor_logprob", "trainer.dispatch_size.old_log_prob", "actor", false, true},
      {"actor_update", "rl_config.actor_update_dispatch_size", "actor", false, true},
      {"ref", "trainer.dispatch_size.ref", "ref", false, true},
      {"reward", "trainer.dispatch_size.reward", "reward", true, false},
      {"adv", "rl_config.adv_dispatch_size", nullptr, true, false},
      {"kl", "rl_config.kl_dispatch_size", "critic", true, true},
      {"critic_value", "trainer.dispatch_size.values", "critic", false, true},
      {"critic_update", "rl_config.critic_update_dispatch_size", "critic", false, true},
  };
  for (const Stage& stage : kStages) {
    const bool has_role = stage.role != nullptr && absl::c_any_of(numbers.roles, [&](const RoleNumbers& role) {
                            return role.role == stage.role;
                          });
    DispatchSize dispatch{.name = stage.name, .size = reader.First({stage.key}), .groups = stage.groups};
    if (stage.needs_role && !has_role && dispatch.size.value == 0) continue;
    const bool takes_all = stage.role == nullptr || dispatch.name == "kl";
    dispatch.ranks = takes_all ? 1 : RanksOf(numbers, stage.role);
    if (dispatch.name == "actor_update") dispatch.at_least_prompts = numbers.roles[0].mini_batch;
    // Devices that do not divide are reported as such.
    if (dispatch.ranks > 0) numbers.dispatch_sizes.push_back(std::move(dispatch));
  }
  const Setting dynamic = reader.First({"rl_config.dynamic_sampling_dispatch_size"});
  if (dynamic.value > 0 || reader.IsOn("algorithm.filter_groups.enable")) {
    numbers.dispatch_sizes.push_back({.name = "dynamic_sampling",
                                      .size = dynamic,
                                      .ranks = reader.First({"trainer.nnodes"}, 1).value,
                                      .groups = true});
  }
}

void AddOptions(const NumberReader& reader, RunNumbers& numbers) {
  numbers.steps = reader.First({"trainer.total_training_steps"});
  numbers.epochs = reader.First({"trainer.total_epochs"});
  if (reader.IsOn("reward.overlong_buffer.enable")) {
    numbers.overlong_buffer = reader.First({"reward.overlong_buffer.len"});
  }
  numbers.filters_groups = reader.IsOn("algorithm.filter_groups.enable");
  if (numbers.filters_groups) numbers.most_rounds = reader.First({"algorithm.filter_groups.max_num_gen_batches"});
  const int64_t verifiers = reader.Length("rl_config.verifier_function");
  const int64_t weights = reader.Length("rl_config.verifier_weight");
  if (verifiers + weights > 0) {  // each has one by default
    numbers.verifiers = {std::max<int64_t>(verifiers, 1), "rl_config.verifier_function"};
    numbers.verifier_weights = {std::max<int64_t>(weights, 1), "rl_config.verifier_weight"};
  }
  numbers.experts =
      reader.First({"actor.megatron.override_transformer_config.num_moe_experts", "actor_config.num_moe_experts",
                    "megatron_training.num_moe_experts", "model.override_config.num_moe_experts"});
  numbers.expert_groups = reader.First({"actor.megatron.override_transformer_config.moe_router_num_groups",
                                        "actor_config.moe_router_num_groups", "megatron_training.moe_router_num_groups",
                                        "model.override_config.moe_router_num_groups"});
  numbers.has_clip = reader.Has("actor.clip_ratio_low");
  numbers.clip_low = reader.Number("actor.clip_ratio_low");
  numbers.clip_high = reader.Number("actor.clip_ratio_high");
  numbers.validation_samples = reader.IsOn("rollout.val_kwargs.do_sample");
  numbers.validation_temperature = reader.Number("rollout.val_kwargs.temperature");
}

void AddModel(const ModelSection& section, Env& env, RunNumbers& numbers) {
  if (section.path.empty()) {
    numbers.heads = section.num_attention_heads;
    numbers.layers = section.num_hidden_layers;
    numbers.positions = section.max_position_embeddings;
    return;
  }
  const absl::StatusOr<model::ModelConfig> model = ReadModelConfig(section, env);
  if (!model.ok()) return;
  numbers.heads = model->num_heads;
  numbers.layers = model->num_layers;
  numbers.positions = model->context_length();
}

}  // namespace

RunNumbers NumbersOf(Recipe& recipe, Env& env) {
  const NumberReader reader(recipe);
  RunNumbers numbers;
  numbers.prompts = reader.First({"data.train_batch_size"});
  numbers.samples_per_prompt = reader.First({"rollout.n"}, recipe.samples_per_prompt());
  numbers.generated_prompts = reader.First({"data.gen_batch_size"});
  numbers.longest = {recipe.longest_tokens(), absl::StrReplaceAll(recipe.longest_keys(), {{" + ", ", "}})};
  if (recipe.phase() == data::Phase::kPrompt) {
    numbers.prompt_length = reader.First({"data.max_prompt_length"});
    numbers.response_length = reader.First({"data.max_response_length"});
  }
  numbers.max_model_len = reader.First({"rollout.max_model_len", "generate_config.max_model_len"});
  numbers.context_length = reader.First({"rollout.context_length"});
  numbers.leaves_last_position = reader.IsOn("rollout.leave_last_position");
  numbers.sequence_length = reader.First({"actor_config.seq_length", "megatron_training.seq_length"});
  AddRoles(reader, numbers);
  if (reader.IsMindSpeed()) {
    numbers.whole_groups = true;
    AddDispatchSizes(reader, numbers);
  }
  AddOptions(reader, numbers);
  AddModel(recipe.config().model, env, numbers);
  return numbers;
}

NumberReport CheckNumbers(Recipe& recipe, Env& env) { return CheckRunNumbers(NumbersOf(recipe, env)); }

absl::StatusOr<std::unique_ptr<Recipe>> LoadRecipeWithNumbers(Env& env, const std::string& path,
                                                              std::span<const std::string> overrides,
                                                              const config::LoadOptions& options) {
  return LoadRecipe(env, path, overrides, options, [&env](Recipe& recipe) {
    std::vector<config::Conflict> conflicts;
    for (const Violation& violation : CheckNumbers(recipe, env).violations) {
      conflicts.push_back({absl::StrSplit(violation.keys, ", ", absl::SkipEmpty()),
                           violation.nearest.empty() ? violation.what
                                                     : absl::StrCat(violation.what, "; nearest: ", violation.nearest)});
    }
    return conflicts;
  });
}

}  // namespace tdock::trainer
