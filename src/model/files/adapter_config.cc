#include "model/files/adapter_config.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "model/files/key_reader.h"

namespace tdock::model {
namespace {

using Json = nlohmann::json;

constexpr int kMaxAdapterDepth = 8;
constexpr int64_t kMaxRank = int64_t{1} << 16;
constexpr char kAllLinear[] = "all-linear";

void ReadTargets(KeyReader& keys, LoraConfig& config) {
  if (!keys.Has("target_modules")) return keys.Complain("key 'target_modules' is missing");
  const Json& targets = keys.At("target_modules");
  if (targets == kAllLinear) return;
  if (targets.is_string()) return keys.Refuse("'target_modules' as a pattern is not supported; list the names");
  if (!targets.is_array() || targets.empty()) return keys.Complain("key 'target_modules' must be a list of names");
  for (const Json& target : targets) {
    if (!target.is_string()) return keys.Complain("key 'target_modules' must be a list of names");
    config.targets.push_back(target.get<std::string>());
  }
}

void ReadLayers(KeyReader& keys, LoraConfig& config) {
  if (!keys.Has("layers_to_transform")) return;
  const Json& layers = keys.At("layers_to_transform");
  const Json list = layers.is_array() ? layers : Json::array({layers});
  for (const Json& layer : list) {
    if (!layer.is_number_integer()) return keys.Complain("key 'layers_to_transform' must be a list of numbers");
    config.layers.push_back(layer.get<int64_t>());
  }
}

// Keys that are read, and keys that change nothing of what adapters compute.
constexpr absl::string_view kKnownKeys[] = {"r",
                                            "lora_alpha",
                                            "use_rslora",
                                            "target_modules",
                                            "layers_to_transform",
                                            "peft_type",
                                            "bias",
                                            "modules_to_save",
                                            "lora_dropout",
                                            "init_lora_weights",
                                            "task_type",
                                            "peft_version",
                                            "revision",
                                            "base_model_name_or_path",
                                            "inference_mode",
                                            "auto_mapping",
                                            "megatron_core",
                                            "fan_in_fan_out",
                                            "qalora_group_size",
                                            "ensure_weight_tying"};
// Those that leave the base weights as they are; others (PiSSA, OLoRA, …) take the adapters out of them.
constexpr absl::string_view kKnownInits[] = {"gaussian", "orthogonal", "eva"};

bool IsNothing(const Json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty()) || value == "";
}

// Whatever would make other numbers of the same weights.
void RefuseVariants(const Json& json, KeyReader& keys) {
  if (keys.String("peft_type", "LORA") != "LORA") {
    keys.Refuse(absl::StrCat("peft_type '", EscapeForMessage(keys.String("peft_type")),
                             "' is not supported; supported is LORA"));
  }
  for (const auto& [key, value] : json.items()) {
    const bool known = std::find(std::begin(kKnownKeys), std::end(kKnownKeys), key) != std::end(kKnownKeys);
    if (!known && !IsNothing(value)) keys.Refuse(absl::StrCat("'", EscapeForMessage(key), "' is not supported"));
  }
  if (keys.String("bias", "none") != "none") keys.Refuse("'bias' other than none is not supported");
  if (keys.Has("init_lora_weights") && !keys.At("init_lora_weights").is_boolean()) {
    const std::string init = keys.String("init_lora_weights");
    if (std::find(std::begin(kKnownInits), std::end(kKnownInits), init) == std::end(kKnownInits)) {
      keys.Refuse(
          absl::StrCat("init_lora_weights '", EscapeForMessage(init), "' is not supported: it changes the base"));
    }
  }
}

void ReadSavedModules(KeyReader& keys, LoraConfig& config) {
  if (!keys.Has("modules_to_save")) return;
  const Json& modules = keys.At("modules_to_save");
  if (!modules.is_array()) return keys.Complain("key 'modules_to_save' must be a list of names");
  for (const Json& name : modules) {
    if (!name.is_string()) return keys.Complain("key 'modules_to_save' must be a list of names");
    // PEFT names it for every classifier, beside the head that there is.
    if (name != "classifier") config.saved.push_back(name.get<std::string>());
  }
}

}  // namespace

double LoraConfig::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rank_stabilised ? std::sqrt(r) : r);
}

bool LoraConfig::saves(absl::string_view module) const {
  return std::any_of(saved.begin(), saved.end(), [&](const std::string& name) { return absl::EndsWith(module, name); });
}

absl::Status Validate(const LoraConfig& config) {
  std::vector<std::string> wrong;
  if (config.rank < 1 || config.rank > kMaxRank) {
    wrong.push_back(absl::StrCat("the rank must be between 1 and ", kMaxRank, ", not ", config.rank));
  }
  if (!std::isfinite(config.alpha)) wrong.push_back(absl::StrCat("alpha must be a number, not ", config.alpha));
  if (!(config.dropout >= 0 && config.dropout < 1)) {
    wrong.push_back(absl::StrCat("the dropout must be at least 0 and less than 1, not ", config.dropout));
  }
  for (const std::string& target : config.targets) {
    if (target.empty()) wrong.push_back("a target must have a name");
  }
  for (const std::string& module : config.saved) {
    if (module.empty()) wrong.push_back("a module that is trained whole must have a name");
  }
  for (const int64_t layer : config.layers) {
    if (layer < 0) wrong.push_back(absl::StrCat("a layer must be at least 0, not ", layer));
  }
  return wrong.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(wrong, "; "));
}

absl::StatusOr<LoraConfig> ParseLoraConfig(absl::string_view text) {
  TDOCK_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text, kMaxAdapterDepth));
  KeyReader keys(json);
  LoraConfig config;
  RefuseVariants(json, keys);
  config.rank = keys.Int("r", 8);
  config.alpha = keys.Float("lora_alpha", 8.0);
  config.rank_stabilised = keys.Bool("use_rslora", false);
  config.dropout = keys.Float("lora_dropout", 0.0);
  ReadTargets(keys, config);
  ReadLayers(keys, config);
  ReadSavedModules(keys, config);
  TDOCK_RETURN_IF_ERROR(keys.status());
  TDOCK_RETURN_IF_ERROR(Validate(config));
  return config;
}

std::string LoraConfigJson(const LoraConfig& config, const AdapterFacts& facts) {
  nlohmann::ordered_json json = {{"peft_type", "LORA"},
                                 {"task_type", config.saves("score") ? "SEQ_CLS" : "CAUSAL_LM"},
                                 {"base_model_name_or_path", facts.base_model},
                                 {"r", config.rank},
                                 {"lora_alpha", config.alpha},
                                 {"use_rslora", config.rank_stabilised},
                                 {"lora_dropout", config.dropout},
                                 {"bias", "none"},
                                 {"fan_in_fan_out", facts.inputs_first},
                                 {"inference_mode", true},
                                 {"init_lora_weights", true}};
  if (config.targets.empty()) {
    json["target_modules"] = kAllLinear;
  } else {
    json["target_modules"] = config.targets;
  }
  if (!config.layers.empty()) json["layers_to_transform"] = config.layers;
  if (!config.saved.empty()) json["modules_to_save"] = config.saved;
  return JsonText(json, 2) + "\n";
}

}  // namespace tdock::model
