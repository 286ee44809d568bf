#include "trainer/loop/fingerprint.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "data/dataset.h"
#include "model/decoder/weights.h"

namespace tdock::trainer {
namespace {

// Where a run reads and writes, when it saves, what it shows and who takes part: none of it changes a number that it
// computes.
constexpr const char* kFreeKeys[] = {"threads",
                                     "model.path",
                                     "critic.model.path",
                                     "reward_model.model.path",
                                     "data.train_files",
                                     "data.val_files",
                                     "data.ptx_files",
                                     "trainer.run_dir",
                                     "trainer.save_freq",
                                     "trainer.max_checkpoints_to_keep",
                                     "trainer.best_metric",
                                     "trainer.best_mode",
                                     "trainer.resume_mode",
                                     "trainer.resume_from_path",
                                     "trainer.max_minutes",
                                     "trainer.log_val_generations",
                                     "trainer.peak_flops",
                                     "trainer.profile_steps",
                                     "trainer.executor",
                                     "trainer.stage_timeout",
                                     "trainer.guarantee_order",
                                     "trainer.stage_retries",
                                     "trainer.serve",
                                     "trainer.dock",
                                     "trainer.partition",
                                     "trainer.dock_token_file",
                                     "trainer.dock_tls_ca",
                                     "trainer.dock_tls_cert",
                                     "trainer.dock_tls_key",
                                     "trainer.external_timeout",
                                     "resources.pools",
                                     "resources.roles",
                                     "resources.join_timeout",
                                     "resources.silence_timeout",
                                     "resources.collective_timeout",
                                     "resources.log_calls",
                                     "zero_stage",
                                     "actor.zero_stage",
                                     "critic.zero_stage",
                                     "model.save_dtype",
                                     "critic.model.save_dtype",
                                     "data.num_workers",
                                     "data.cache",
                                     "reward.python",
                                     "reward.processes",
                                     "reward.batch_size",
                                     "reward.timeout",
                                     "reward.start_timeout",
                                     "reward.retries",
                                     "reward.max_restarts",
                                     "reward.memory_gb",
                                     "environment.python",
                                     "environment.processes",
                                     "environment.timeout",
                                     "environment.start_timeout",
                                     "environment.retries",
                                     "environment.max_restarts",
                                     "environment.memory_gb",
                                     "rollout.max_num_seqs",
                                     "rollout.probe_prompts",
                                     "rollout.servers",
                                     "rollout.servers_file",
                                     "rollout.server_weights",
                                     "rollout.server_weights_path",
                                     "rollout.server_weights_folder",
                                     "rollout.server_model",
                                     "rollout.server_key_env",
                                     "rollout.server_ca_file",
                                     "rollout.server_connections",
                                     "rollout.server_timeout",
                                     "rollout.server_answer_timeout",
                                     "rollout.server_retries"};

absl::StatusOr<std::string> TemplateChecksum(Env& env, const std::string& folder) {
  text::ContentHasher hasher;
  for (const char* name : {"chat_template.jinja", "chat_template.json"}) {
    const std::string path = JoinPath(folder, name);
    if (!env.Exists(path)) continue;
    TDOCK_ASSIGN_OR_RETURN(const std::string contents, env.ReadFile(path));
    hasher.AddField(contents);
  }
  return text::Hex(hasher.Value());
}

std::string ValueIn(const Fingerprint& fingerprint, const std::string& key) {
  const auto found = fingerprint.find(key);
  return found == fingerprint.end() ? "not set" : found->second;
}

}  // namespace

std::string WeightsChecksum(const model::Decoder& decoder) {
  model::NamedTensors all = decoder.NamedWeights();
  const model::NamedTensors adapters = decoder.NamedAdapters();
  all.insert(all.end(), adapters.begin(), adapters.end());
  return absl::StrFormat("%016x", model::ChecksumOf(all));
}

bool IsFree(const std::string& key) {
  return std::any_of(std::begin(kFreeKeys), std::end(kFreeKeys), [&](const char* free) { return key == free; });
}

absl::StatusOr<Fingerprint> FingerprintOf(Env& env, const config::Spec& spec, const RunConfig& config,
                                          const RunInputs& inputs, const model::Decoder& decoder,
                                          const text::ContentHash& order) {
  Fingerprint fingerprint = config::Values(spec);
  std::erase_if(fingerprint, [](const auto& entry) { return IsFree(entry.first); });
  // Which servers there are does not matter; whether there are any decides which stages there are.
  fingerprint["rollout.servers"] = config.servers.used() ? "some" : "none";
  fingerprint["<model>"] = WeightsChecksum(decoder);
  fingerprint["<data>"] = text::Hex(order);
  if (inputs.data.validation != nullptr) fingerprint["<validation>"] = text::Hex(inputs.data.validation->content());
  if (inputs.ptx.train != nullptr) fingerprint["<ptx>"] = text::Hex(inputs.ptx.train->content());
  if (!config.model.path.empty()) {
    TDOCK_ASSIGN_OR_RETURN(const text::ContentHash tokenizer, data::TokenizerContent(env, config.model.path));
    fingerprint["<tokenizer>"] = text::Hex(tokenizer);
    TDOCK_ASSIGN_OR_RETURN(fingerprint["<template>"], TemplateChecksum(env, config.model.path));
  }
  return fingerprint;
}

absl::Status AddRoles(Env& env, const std::map<std::string, RoleModel>& models, Fingerprint& fingerprint) {
  for (const auto& [name, model] : models) {
    fingerprint[absl::StrCat("<", name, ">")] = WeightsChecksum(model.policy.decoder);
    if (model.own_tokenizer == nullptr) continue;
    TDOCK_ASSIGN_OR_RETURN(const text::ContentHash tokenizer, data::TokenizerContent(env, model.role.section->path));
    fingerprint[absl::StrCat("<", name, " tokenizer>")] = text::Hex(tokenizer);
    TDOCK_ASSIGN_OR_RETURN(fingerprint[absl::StrCat("<", name, " template>")],
                           TemplateChecksum(env, model.role.section->path));
  }
  return absl::OkStatus();
}

std::vector<std::string> Changes(const Fingerprint& saved, const Fingerprint& now) {
  std::set<std::string> keys;
  for (const Fingerprint* fingerprint : {&saved, &now}) {
    for (const auto& [key, value] : *fingerprint) keys.insert(key);
  }
  std::vector<std::string> changes;
  for (const std::string& key : keys) {
    const bool is_key = key.front() != '<';
    if (is_key && (!saved.contains(key) || !now.contains(key))) continue;
    if (ValueIn(saved, key) == ValueIn(now, key)) continue;
    changes.emplace_back(absl::StripPrefix(absl::StripSuffix(key, ">"), "<"));
  }
  return changes;
}

absl::Status CheckFingerprint(const Fingerprint& saved, const Fingerprint& now, std::span<const std::string> allowed) {
  std::vector<std::string> changes, names = Changes(saved, now);
  std::erase_if(
      names, [&](const std::string& name) { return std::find(allowed.begin(), allowed.end(), name) != allowed.end(); });
  if (names.empty()) return absl::OkStatus();
  for (const std::string& name : names) {
    changes.push_back(saved.contains(name)
                          ? absl::StrCat(name, " was ", ValueIn(saved, name), " and is ", ValueIn(now, name))
                          : absl::StrCat("the ", name, " has changed"));
  }
  const auto as_options = [](std::string* out, const std::string& name) {
    absl::StrAppend(out, "--allow-changed ", name);
  };
  return absl::FailedPreconditionError(
      absl::StrCat("this is not the run that was saved: ", absl::StrJoin(changes, "; "),
                   ". To go on with what is there now: ", absl::StrJoin(names, " ", as_options)));
}

}  // namespace tdock::trainer
