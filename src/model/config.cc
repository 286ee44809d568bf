#include "model/config.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json_text.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace tdock::model {
namespace {

using Json = nlohmann::json;

constexpr int kMaxJsonDepth = 32;

// Reads typed keys of a JSON object and keeps the first complaint.
class KeyReader {
 public:
  explicit KeyReader(const Json& object) : object_(object) {}

  bool Has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

  int64_t Int(const char* key, std::optional<int64_t> fallback = std::nullopt) {
    if (!Has(key)) return Missing(key, fallback);
    if (!object_.at(key).is_number_integer()) return Wrong<int64_t>(key, "an integer");
    if (object_.at(key).is_number_unsigned() && object_.at(key).get<uint64_t>() > INT64_MAX) {
      return Wrong<int64_t>(key, "an integer below 2^63");
    }
    return object_.at(key).get<int64_t>();
  }

  double Float(const char* key, std::optional<double> fallback = std::nullopt) {
    if (!Has(key)) return Missing(key, fallback);
    if (!object_.at(key).is_number()) return Wrong<double>(key, "a number");
    return object_.at(key).get<double>();
  }

  bool Bool(const char* key, std::optional<bool> fallback = std::nullopt) {
    if (!Has(key)) return Missing(key, fallback);
    if (!object_.at(key).is_boolean()) return Wrong<bool>(key, "true or false");
    return object_.at(key).get<bool>();
  }

  std::string String(const char* key, const std::optional<std::string>& fallback = std::nullopt) {
    if (!Has(key)) return Missing(key, fallback);
    if (!object_.at(key).is_string()) return Wrong<std::string>(key, "a string");
    return object_.at(key).get<std::string>();
  }

  // A token id may be given as a list, of which the first counts here.
  std::optional<int64_t> TokenId(const char* key) {
    if (!Has(key)) return std::nullopt;
    const Json& value = object_.at(key);
    if (value.is_array() && !value.empty() && value.at(0).is_number_integer()) return value.at(0).get<int64_t>();
    return Int(key);
  }

  void Complain(absl::string_view message) { Keep(absl::InvalidArgumentError(message)); }

  // What the file asks for is well formed, but the decoder does not have it.
  void Refuse(absl::string_view message) { Keep(absl::UnimplementedError(message)); }

  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }

  const absl::Status& status() const { return status_; }

 private:
  template <class T>
  T Missing(const char* key, const std::optional<T>& fallback) {
    if (fallback) return *fallback;
    Complain(absl::StrCat("key '", key, "' is missing"));
    return T();
  }
  template <class T>
  T Wrong(const char* key, absl::string_view expected) {
    Complain(absl::StrCat("key '", key, "' must be ", expected, ", not ", object_.at(key).dump().substr(0, 80)));
    return T();
  }

  const Json& object_;
  absl::Status status_;
};

// `transformers` writes the rope's parameters as top-level keys up to version 4, and under rope_parameters from 5 on. A
// file may have both, as long as they agree.
void ReadRope(const Json& json, KeyReader& keys, ModelConfig& config) {
  std::optional<double> theta;
  const auto read = [&](KeyReader& from) {
    if (from.Float("partial_rotary_factor", 1.0) != 1.0) from.Refuse("'partial_rotary_factor' is not supported");
    if (!from.Has("rope_theta")) return;
    const double value = from.Float("rope_theta");
    if (theta && *theta != value) {
      from.Complain(absl::StrCat("rope_theta is ", *theta, " in one place and ", value, " in another"));
    }
    theta = value;
  };
  read(keys);
  for (const char* where : {"rope_parameters", "rope_scaling"}) {
    if (!keys.Has(where)) continue;
    if (!json.at(where).is_object()) return keys.Complain(absl::StrCat("key '", where, "' must be an object"));
    KeyReader rope(json.at(where));
    const std::string type = rope.String("rope_type", rope.String("type", "default"));
    if (type != "default") {
      rope.Refuse(absl::StrCat("rope type '", type, "' is not supported; supported is 'default'"));
    }
    read(rope);
    keys.Keep(Annotate(rope.status(), where));
  }
  config.rope_theta = theta.value_or(config.rope_theta);
}

void RefuseOtherLayers(const Json& json, KeyReader& keys) {
  if (!keys.Has("layer_types")) return;
  const Json& types = json.at("layer_types");
  if (!types.is_array()) return keys.Complain("key 'layer_types' must be a list");
  for (const Json& type : types) {
    if (type == "full_attention") continue;
    return keys.Refuse(
        absl::StrCat("layer type ", type.dump().substr(0, 80), " is not supported; supported is \"full_attention\""));
  }
}

void ReadArchitecture(const Json& json, KeyReader& keys, ModelConfig& config) {
  const std::string type = keys.String("model_type");
  if (type == "llama") {
    config.architecture = Architecture::kLlama;
    if (keys.Bool("mlp_bias", false)) keys.Refuse("'mlp_bias': true is not supported");
    if (keys.Bool("attention_bias", false)) {
      keys.Refuse("'attention_bias': true is not supported for model_type 'llama'");
    }
  } else if (type == "qwen2") {
    config.architecture = Architecture::kQwen2;
    config.qkv_bias = true;
    if (keys.Bool("use_sliding_window", false)) keys.Refuse("'use_sliding_window': true is not supported");
    RefuseOtherLayers(json, keys);
  } else if (keys.status().ok()) {
    keys.Refuse(absl::StrCat("model_type '", type, "' is not supported; supported are 'llama' and 'qwen2'"));
  }
  const std::string activation = keys.String("hidden_act", "silu");
  if (activation != "silu") {
    keys.Refuse(absl::StrCat("hidden_act '", activation, "' is not supported; supported is 'silu'"));
  }
  if (keys.Has("quantization_config")) keys.Refuse("quantised checkpoints ('quantization_config') are not supported");
}

}  // namespace

absl::Status Validate(const ModelConfig& c) {
  std::vector<std::string> wrong;
  const auto within = [&](absl::string_view key, int64_t value, int64_t most) {
    if (value >= 1 && value <= most) return;
    wrong.push_back(absl::StrCat(key, " must be between 1 and ", most, ", not ", value));
  };
  within("vocab_size", c.vocab_size, kMaxSize);
  within("hidden_size", c.hidden_size, kMaxSize);
  within("intermediate_size", c.intermediate_size, kMaxSize);
  within("num_hidden_layers", c.num_layers, kMaxLayers);
  within("num_attention_heads", c.num_heads, kMaxHeads);
  within("num_key_value_heads", c.num_kv_heads, kMaxHeads);
  within("head_dim", c.head_dim, kMaxHeadDim);
  within("max_position_embeddings", c.max_positions, kMaxPositions);
  if (wrong.empty() && c.num_heads % c.num_kv_heads != 0) {
    wrong.push_back(absl::StrCat("num_attention_heads (", c.num_heads, ") must be a multiple of num_key_value_heads (",
                                 c.num_kv_heads, ")"));
  }
  if (wrong.empty() && c.head_dim % 2 != 0) {
    wrong.push_back(absl::StrCat("head_dim must be even for the rotary embedding, not ", c.head_dim));
  }
  const auto positive = [](double value) { return value > 0 && std::isfinite(value); };
  if (!positive(c.rms_norm_eps)) wrong.push_back(absl::StrCat("rms_norm_eps must be positive, not ", c.rms_norm_eps));
  if (!positive(c.rope_theta)) wrong.push_back(absl::StrCat("rope_theta must be positive, not ", c.rope_theta));
  for (const auto& [key, id] : {std::pair("bos_token_id", c.bos_token_id), std::pair("eos_token_id", c.eos_token_id),
                                std::pair("pad_token_id", c.pad_token_id)}) {
    if (id && (*id < 0 || *id >= c.vocab_size)) {
      wrong.push_back(absl::StrCat(key, " must be at least 0 and below vocab_size (", c.vocab_size, "), not ", *id));
    }
  }
  if (wrong.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(wrong, "; "));
}

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view text) {
  TDOCK_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text, kMaxJsonDepth));
  KeyReader keys(json);
  ModelConfig config;
  ReadArchitecture(json, keys, config);
  config.vocab_size = keys.Int("vocab_size");
  config.hidden_size = keys.Int("hidden_size");
  config.intermediate_size = keys.Int("intermediate_size");
  config.num_layers = keys.Int("num_hidden_layers");
  config.num_heads = keys.Int("num_attention_heads");
  config.num_kv_heads = keys.Int("num_key_value_heads", config.num_heads);
  if (!keys.Has("head_dim") && config.num_heads > 0 && config.hidden_size % config.num_heads != 0) {
    keys.Complain(absl::StrCat("hidden_size (", config.hidden_size, ") must be a multiple of num_attention_heads (",
                               config.num_heads, ") where head_dim is not given"));
  }
  config.head_dim = keys.Int("head_dim", config.num_heads > 0 ? config.hidden_size / config.num_heads : 0);
  config.max_positions = keys.Int("max_position_embeddings");
  config.rms_norm_eps = keys.Float("rms_norm_eps", config.rms_norm_eps);
  config.tied_head = keys.Bool("tie_word_embeddings", false);
  ReadRope(json, keys, config);
  config.bos_token_id = keys.TokenId("bos_token_id");
  config.eos_token_id = keys.TokenId("eos_token_id");
  config.pad_token_id = keys.TokenId("pad_token_id");
  TDOCK_RETURN_IF_ERROR(keys.status());
  TDOCK_RETURN_IF_ERROR(Validate(config));
  return config;
}

std::string ModelConfigJson(const ModelConfig& c) {
  const bool llama = c.architecture == Architecture::kLlama;
  nlohmann::ordered_json json = {
      {"architectures", {llama ? "LlamaForCausalLM" : "Qwen2ForCausalLM"}},
      {"model_type", llama ? "llama" : "qwen2"},
      {"vocab_size", c.vocab_size},
      {"hidden_size", c.hidden_size},
      {"intermediate_size", c.intermediate_size},
      {"num_hidden_layers", c.num_layers},
      {"num_attention_heads", c.num_heads},
      {"num_key_value_heads", c.num_kv_heads},
      {"head_dim", c.head_dim},
      {"hidden_act", "silu"},
      {"max_position_embeddings", c.max_positions},
      {"rms_norm_eps", c.rms_norm_eps},
      {"rope_theta", c.rope_theta},
      {"tie_word_embeddings", c.tied_head},
      {"torch_dtype", "float32"},
      {"use_cache", true},
  };
  if (llama) {
    json["attention_bias"] = false;
    json["mlp_bias"] = false;
  } else {
    json["use_sliding_window"] = false;
  }
  const auto put_id = [&](const char* key, std::optional<int64_t> id) {
    if (id) {
      json[key] = *id;
    } else {
      json[key] = nullptr;
    }
  };
  put_id("bos_token_id", c.bos_token_id);
  put_id("eos_token_id", c.eos_token_id);
  put_id("pad_token_id", c.pad_token_id);
  return json.dump(2) + "\n";
}

}  // namespace tdock::model
