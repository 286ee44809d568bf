#include "trainer/recipes/field_names.h"

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "trainer/recipes/foreign_tables.h"

namespace tdock::trainer {
namespace {

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
    {"actor.optim.lr_decay_style", "actor.optim.lr_scheduler_type"},
    {"critic.grad_clip", "critic.optim.clip_grad"},
    {"optim.num_cycles", "optim.lr_scheduler_kwargs.num_cycles"},
    {"critic.optim.num_cycles", "critic.optim.lr_scheduler_kwargs.num_cycles"},
    {"critic.optim.warmup_style", "critic.optim.lr_scheduler_type"},
    {"critic.optim.lr_decay_style", "critic.optim.lr_scheduler_type"},
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
    {"reward.reward_model.model_path", "reward_model.model.path"},
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
    {"critic.model.recompute", "true", "layers"},
    {"critic.model.recompute", "false", "nothing"},
    {"model.target_modules", "all-linear", ""},
    {"critic.model.target_modules", "all-linear", ""},
    {"algorithm.rollout_correction.bypass_mode", "True", "true"},
    {"algorithm.rollout_correction.bypass_mode", "False", "false"},
    {"algorithm.norm_adv_by_std_in_grpo", "group", "true"},
    {"algorithm.norm_adv_by_std_in_grpo", "none", "false"},
    {"trainer.total_training_steps", "-1", "0"},
};

// The reason in recipes that lack the keys of the table's own reason.
constexpr char kNotHere[] = "this recipe has nothing that it is about";

// True if a name is neither bound, nor inside a bound key, nor another name of one, nor gives others their values.
bool IsFree(const config::Spec& spec, absl::string_view name) {
  if (absl::c_any_of(spec.aliases(), [&](const auto& alias) { return alias.other == name; })) return false;
  if (absl::c_any_of(spec.spreads(), [&](const auto& spread) { return spread.other == name; })) return false;
  for (const config::Spec::DerivedKey& derived : spec.derived()) {
    if (absl::c_linear_search(derived.from, name)) return false;
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

// A name of a key of each `optim` that the recipe has.
void AddOptimName(config::Spec& spec, const OtherName& name) {
  std::vector<std::string> keys;
  for (const char* section : {"optim.", "actor.optim.", "critic.optim."}) {
    std::string key = absl::StrCat(section, name.key);
    if (spec.Find(key) != nullptr) keys.push_back(std::move(key));
  }
  if (keys.size() == 1) AddAlias(spec, {name.other, keys[0].c_str()});
  if (keys.size() > 1) AddSpread(spec, name.other, keys);
}

using GivenTexts = std::span<const std::string>;
using DerivedText = std::optional<std::string>;

void AddDerived(config::Spec& spec, const std::string& key, const std::vector<std::string>& from,
                config::Spec::Derivation derive) {
  if (spec.Find(key) != nullptr) spec.Derive(key, from, std::move(derive));
}

// `value` if `given` is `wanted`; a text that is no switch is returned as it is, to be refused.
DerivedText IfSwitched(const std::string& wanted, const std::string& given, const std::string& value) {
  if (absl::EqualsIgnoreCase(given, wanted)) return value;
  if (given.empty() || absl::EqualsIgnoreCase(given, "true") || absl::EqualsIgnoreCase(given, "false")) return {};
  return given;
}

// model.recompute of Megatron's recompute_granularity and recompute_modules, for each of the sections that may have
// them, and of verl's switch, the last.
DerivedText RecomputeOf(GivenTexts given) {
  for (size_t i = 0; i + 1 < given.size(); i += 2) {
    if (given[i].empty()) continue;
    if (given[i] == "full") return "layers";
    if (given[i] != "selective") return given[i];
    const std::vector<std::string> modules = absl::StrSplit(given[i + 1], ',');
    const bool attention = given[i + 1].empty() || absl::c_linear_search(modules, "core_attn");
    if (absl::c_linear_search(modules, "mlp")) return attention ? "attention_core_and_mlp" : "mlp";
    return attention ? "attention_core" : given[i + 1];
  }
  return given.back().empty() ? DerivedText() : DerivedText(given.back());
}

void DeriveRecomputed(config::Spec& spec, const std::string& model, std::vector<const char*> sections) {
  std::vector<std::string> from;
  sections.push_back(model.c_str());
  for (const char* section : sections) {
    from.push_back(absl::StrCat(section, ".recompute_granularity"));
    from.push_back(absl::StrCat(section, ".recompute_modules"));
  }
  from.push_back(model + ".enable_gradient_checkpointing");
  AddDerived(spec, model + ".recompute", from, RecomputeOf);
}

// Carries over what a file of verl says with keys that are not ours, or by being one: there, advantages of GAE are
// whitened, scores are not limited, and no answer is too short.
void DeriveFromVerl(config::Spec& spec) {
  DeriveRecomputed(spec, "model", {"actor.megatron.override_transformer_config", "actor_config", "megatron_training"});
  DeriveRecomputed(spec, "critic.model", {"critic.megatron.override_transformer_config", "critic_config"});
  AddDerived(spec, "actor.kl_loss_coef", {"actor.kl_loss_coef", "actor.use_kl_loss"}, [](GivenTexts given) {
    if (given[0].empty() && absl::EqualsIgnoreCase(given[1], "true")) return DerivedText("0.001");
    return IfSwitched("false", given[1], "0");
  });
  const std::pair<const char*, const char*> limits[] = {
      {"actor.ppo_micro_batch_size_per_gpu", "actor.use_dynamic_bsz"},
      {"critic.ppo_micro_batch_size_per_gpu", "critic.use_dynamic_bsz"},
      {"ref.log_prob_micro_batch_size_per_gpu", "ref.log_prob_use_dynamic_bsz"},
      {"data.micro_batch_size_per_gpu", "data.use_dynamic_bsz"},
  };
  for (const auto& [samples, by_tokens] : limits) {
    AddDerived(spec, samples, {samples, by_tokens}, [](GivenTexts given) { return IfSwitched("true", given[1], "0"); });
  }
  // Its defaults are found in the records without being named.
  AddDerived(spec, "data.columns.prompt", {"data.prompt_key"},
             [](GivenTexts given) { return given[0] == "prompt" ? DerivedText() : DerivedText(given[0]); });
  AddDerived(spec, "data.columns.source", {"data.reward_fn_key"},
             [](GivenTexts given) { return given[0] == "data_source" ? DerivedText() : DerivedText(given[0]); });
  std::vector<std::string> function;
  for (const char* section : {"custom_reward_function", "reward.custom_reward_function"}) {
    function.push_back(absl::StrCat(section, ".path"));
    function.push_back(absl::StrCat(section, ".name"));
  }
  AddDerived(spec, "reward.function", function, [](GivenTexts given) {
    const size_t i = given[0].empty() ? 2 : 0;
    if (given[i].empty()) return DerivedText();
    return DerivedText(absl::StrCat(given[i], ":", given[i + 1].empty() ? "compute_score" : given[i + 1]));
  });
  if (spec.Find("algorithm.norm_adv") == nullptr) return;
  const OtherName values[] = {
      {"algorithm.norm_adv", "true"}, {"algorithm.clip_score", "0"}, {"rollout.min_response_tokens", "0"}};
  for (const auto& [key, value] : values) {
    AddDerived(spec, key, {key, "actor_rollout_ref"}, [value = std::string(value)](GivenTexts given) {
      return given[0].empty() ? DerivedText(value) : DerivedText();
    });
  }
}

// The names of TRL whose values are written differently, or that give several keys.
void DeriveFromTrl(config::Spec& spec) {
  AddDerived(spec, "model.compute_dtype", {"bf16"},
             [](GivenTexts given) { return IfSwitched("true", given[0], "bfloat16"); });
  AddDerived(spec, "model.compute_dtype", {"fp16"},
             [](GivenTexts given) { return IfSwitched("true", given[0], "float16"); });
  AddDerived(spec, "dpo.loss_type", {"loss_type"}, [](GivenTexts given) { return DerivedText(given[0]); });
  AddDerived(spec, "dpo.average_log_prob", {"dpo.average_log_prob", "loss_type"}, [](GivenTexts given) {
    return given[1] == "ipo" && given[0].empty() ? DerivedText("true") : DerivedText();
  });
  AddDerived(spec, "actor.loss_agg_mode", {"loss_type"}, [](GivenTexts given) {
    const std::string& type = given[0];
    if (type == "dapo" || type == "bnpo" || type == "vespo") return DerivedText("token-mean");
    if (type == "grpo" || type == "sapo") return DerivedText("seq-mean-token-mean");
    if (type == "dr_grpo") return DerivedText("seq-mean-token-sum-norm");
    return DerivedText(type == "luspo" ? "seq-mean-token-sum" : type);
  });
  AddDerived(spec, "actor.policy_loss.loss_mode", {"loss_type", "importance_sampling_level"}, [](GivenTexts given) {
    if (given[0] == "sapo" || given[0] == "vespo") return DerivedText(given[0]);
    if (given[1].empty()) return DerivedText();
    return DerivedText(given[1] == "sequence" ? "gspo" : given[1] == "token" ? "vanilla" : given[1]);
  });
}

// "{a,b}.c" as a.c and b.c.
void ExpandNames(absl::string_view name, std::vector<std::string>& names) {
  const size_t open = name.find('{'), close = name.find('}');
  if (open == absl::string_view::npos) {
    names.emplace_back(name);
    return;
  }
  for (const absl::string_view part : absl::StrSplit(name.substr(open + 1, close - open - 1), ',')) {
    ExpandNames(absl::StrCat(name.substr(0, open), part, name.substr(close + 1)), names);
  }
}

// True if the recipe has all keys and sections that the text names.
bool HasKeysOf(const config::Spec& spec, absl::string_view text) {
  const auto is_of_key = [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_' || c == '.';
  };
  for (const absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" ,;:`"))) {
    const bool is_key = absl::StrContains(word, '.') && absl::c_all_of(word, is_of_key);
    if (is_key && spec.Find(word) == nullptr && !spec.HasSection(word)) return false;
  }
  return true;
}

void AddForeign(config::Spec& spec, std::span<const ForeignKeys> rows, bool may_be_skipped) {
  absl::flat_hash_set<std::string> added;
  const auto add = [&](const char* why, absl::string_view names, const std::vector<std::string>& harmless) {
    std::vector<std::string> expanded;
    ExpandNames(names, expanded);
    for (std::string& name : expanded) {
      // Without a critic, all about it is said of its section.
      const bool of_no_critic = absl::StartsWith(name, "critic.") && !spec.HasSection("critic");
      if (of_no_critic || !IsFree(spec, name) || !added.insert(name).second) continue;
      // Other keys of a section in which the recipe has keys are unknown.
      if (!may_be_skipped) {
        spec.Refuse(std::move(name), why, harmless);
      } else if (!spec.HasSection(name)) {
        spec.Ignore(std::move(name), why, harmless);
      }
    }
  };
  for (const bool fits : {true, false}) {
    for (const ForeignKeys& row : rows) {
      if (HasKeysOf(spec, row.why) != fits) continue;
      for (const absl::string_view entry : absl::StrSplit(row.names, ' ')) {
        const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(entry, absl::MaxSplits('=', 1));
        const std::vector<std::string> harmless = absl::StrSplit(parts.second, ',', absl::SkipEmpty());
        add(fits ? row.why : kNotHere, parts.first, harmless);
      }
    }
  }
}

}  // namespace

void BindFieldNames(config::Spec& spec) {
  for (const OtherName& section : kSections) spec.AliasSection(section.other, section.key);
  if (spec.HasSection("actor.optim") && !spec.HasSection("optim")) spec.AliasSection("optim", "actor.optim");
  DeriveFromVerl(spec);
  DeriveFromTrl(spec);
  for (const OtherName& name : kVerlKeys) AddAlias(spec, name);
  for (const OtherName& name : kMindSpeedKeys) AddAlias(spec, name);
  for (const OtherName& name : kDeepSpeedKeys) AddAlias(spec, name);
  for (const OtherName& name : TrlNames()) AddAlias(spec, name);
  for (const OtherName& name : TrlOptimNames()) AddOptimName(spec, name);
  // TRL's max_steps counts optimizer steps, and a step that generates answers may have several.
  if (spec.Find("rollout.n") == nullptr) AddAlias(spec, {"max_steps", "trainer.total_training_steps"});
  for (const char* clip : {"actor.clip_ratio", "rl_config.clip_ratio", "epsilon", "cliprange"}) {
    AddSpread(spec, clip, {"actor.clip_ratio_low", "actor.clip_ratio_high"});
  }
  for (const char* optim : {"actor.optim", "critic.optim"}) {
    AddSpread(spec, absl::StrCat(optim, ".betas"), {absl::StrCat(optim, ".beta1"), absl::StrCat(optim, ".beta2")});
  }
  for (const OtherValue& value : kOtherValues) {
    if (spec.Find(value.key) != nullptr) spec.AliasValue(value.key, value.other, value.value);
  }
  AddForeign(spec, RefusedKeys(), /*may_be_skipped=*/false);
  AddForeign(spec, TrlRefusedKeys(), /*may_be_skipped=*/false);
  AddForeign(spec, IgnoredKeys(), /*may_be_skipped=*/true);
  AddForeign(spec, TrlIgnoredKeys(), /*may_be_skipped=*/true);
  if (!spec.HasSection("critic")) spec.Ignore("critic", "there is no critic");
}

}  // namespace tdock::trainer
