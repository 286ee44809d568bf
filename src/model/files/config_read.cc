// config.json in.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "model/files/config.h"
#include "model/files/config_keys.h"
#include "model/files/key_reader.h"

namespace tdock::model {
namespace {

using Json = nlohmann::json;

constexpr int kMaxConfigDepth = 32;

constexpr absl::string_view kRopeKeys[] = {"rope_type",        "type",
                                           "rope_theta",       "partial_rotary_factor",
                                           "factor",           "original_max_position_embeddings",
                                           "low_freq_factor",  "high_freq_factor",
                                           "attention_factor", "mscale",
                                           "mscale_all_dim",   "beta_fast",
                                           "beta_slow",        "truncate",
                                           "finetuned"};  // changes nothing

// The parameters of one kind of rope, from the object that has them.
void ReadRopeParameters(KeyReader& keys, RopeConfig& rope) {
  const std::string name = keys.String("rope_type", keys.String("type", "default"));
  const std::optional<RopeType> type = ParseRopeType(name);
  if (!type) {
    return keys.Refuse(absl::StrCat("rope type '", EscapeForMessage(name),
                                    "' is not supported; supported are default, linear, dynamic, llama3 and yarn"));
  }
  keys.RefuseAllBut(kRopeKeys);
  rope.type = *type;
  if (rope.type == RopeType::kDefault) return;
  rope.factor = keys.Float("factor");
  if (rope.type != RopeType::kLlama3 && rope.type != RopeType::kYarn) return;
  rope.original_max_positions = keys.Int("original_max_position_embeddings", 0);
  if (rope.type == RopeType::kLlama3) {
    rope.low_freq_factor = keys.Float("low_freq_factor");
    rope.high_freq_factor = keys.Float("high_freq_factor");
    return;
  }
  const auto optional = [&](const char* key) { return keys.Has(key) ? std::optional(keys.Float(key)) : std::nullopt; };
  rope.attention_factor = optional("attention_factor");
  rope.mscale = optional("mscale");
  rope.mscale_all_dim = optional("mscale_all_dim");
  rope.beta_fast = keys.Float("beta_fast", rope.beta_fast);
  rope.beta_slow = keys.Float("beta_slow", rope.beta_slow);
  rope.truncate = !keys.IsNull("truncate") && keys.Bool("truncate", true);  // null is false to `transformers`
}

// `transformers` writes the rope's parameters as top-level keys and rope_scaling up to version 4, and under
// rope_parameters from 5 on. A file may have both, as long as they agree.
void ReadRope(KeyReader& keys, ModelConfig& config) {
  std::optional<double> theta;
  const auto read_theta = [&](KeyReader& from) {
    if (from.Float("partial_rotary_factor", 1.0) != 1.0) from.Refuse("'partial_rotary_factor' is not supported");
    if (!from.Has("rope_theta")) return;
    const double value = from.Float("rope_theta");
    if (theta && *theta != value) {
      from.Complain(absl::StrCat("rope_theta is ", *theta, " in one place and ", value, " in another"));
    }
    theta = value;
  };
  read_theta(keys);
  std::optional<RopeConfig> first;
  for (const char* where : {"rope_parameters", "rope_scaling"}) {
    if (!keys.Has(where)) continue;
    if (!keys.At(where).is_object()) return keys.Complain(absl::StrCat("key '", where, "' must be an object"));
    KeyReader inside(keys.At(where));
    RopeConfig rope;
    ReadRopeParameters(inside, rope);
    read_theta(inside);
    if (inside.status().ok() && first && !(rope == *first)) inside.Complain("contradicts rope_parameters");
    keys.Keep(Annotate(inside.status(), where));
    first = rope;
    config.rope = rope;
  }
  // `transformers` gives this one priority.
  if (keys.Has("original_max_position_embeddings") &&
      (config.rope.type == RopeType::kLlama3 || config.rope.type == RopeType::kYarn)) {
    config.rope.original_max_positions = keys.Int("original_max_position_embeddings");
  }
  config.rope.theta = theta.value_or(config.rope.theta);
}

// Which layers see only so many tokens back.
void ReadWindows(KeyReader& keys, ModelConfig& config) {
  constexpr int64_t kUsualWindow = 4096;
  const bool mistral = config.architecture == Architecture::kMistral;
  // A key that is missing is not the same as null, which means no window.
  const bool slides = (mistral || keys.Bool("use_sliding_window", false)) && !keys.IsNull("sliding_window");
  const int64_t window = slides ? keys.Int("sliding_window", kUsualWindow) : 0;
  if (slides && window < 1) keys.Complain(absl::StrCat("sliding_window must be at least 1, not ", window));
  const int64_t full_layers = slides && !mistral ? keys.Int("max_window_layers", 28) : 0;
  std::vector<int64_t> windows;
  if (keys.Has("layer_types")) {
    if (!keys.At("layer_types").is_array()) return keys.Complain("key 'layer_types' must be a list");
    for (const Json& type : keys.At("layer_types")) {
      if (type != "full_attention" && type != "sliding_attention") {
        return keys.Refuse(absl::StrCat("layer type ", EscapeUnprintable(JsonText(type), 80),
                                        " is not supported; supported are full_attention and sliding_attention"));
      }
      windows.push_back(type == "sliding_attention" ? window : 0);
      if (type == "sliding_attention" && !slides) {
        return keys.Complain("layer_types has sliding_attention, but there is no sliding_window in use");
      }
      if (mistral && slides && windows.back() == 0) {
        return keys.Refuse("layers without a window beside layers with one are not supported for model_type 'mistral'");
      }
    }
    if (static_cast<int64_t>(windows.size()) != config.num_layers) {
      return keys.Complain(absl::StrCat("layer_types has ", windows.size(), " entries for ", config.num_layers,
                                        " layers (num_hidden_layers)"));
    }
  } else if (slides && config.num_layers >= 1 && config.num_layers <= kMaxLayers) {
    for (int64_t layer = 0; layer < config.num_layers; ++layer) windows.push_back(layer < full_layers ? 0 : window);
  }
  if (std::any_of(windows.begin(), windows.end(), [](int64_t one) { return one != 0; })) config.windows = windows;
}

// Llama, Mistral and the Qwens.
void ReadRotaryFamily(KeyReader& keys, ModelConfig& config) {
  const Architecture architecture = config.architecture;
  // Where the key is missing, `transformers` has another default for each architecture; null means as many as heads.
  const bool as_heads = architecture == Architecture::kLlama || keys.IsNull("num_key_value_heads");
  const std::optional<int64_t> usual =
      architecture == Architecture::kMistral ? std::optional<int64_t>(8) : std::nullopt;
  config.num_kv_heads = keys.Int("num_key_value_heads", as_heads ? std::optional(config.num_heads) : usual);
  if (!keys.Has("head_dim") && config.num_heads > 0 && config.hidden_size % config.num_heads != 0) {
    keys.Complain(absl::StrCat("hidden_size (", config.hidden_size, ") must be a multiple of num_attention_heads (",
                               config.num_heads, ") where head_dim is not given"));
  }
  const int64_t even_share = config.num_heads > 0 ? config.hidden_size / config.num_heads : 0;
  config.head_dim = keys.Int("head_dim", architecture == Architecture::kQwen3 ? 128 : even_share);
  const bool has_bias_key = architecture == Architecture::kLlama || architecture == Architecture::kQwen3;
  const bool bias = has_bias_key && keys.Bool("attention_bias", false);
  config.qkv_bias = architecture == Architecture::kQwen2 || bias;
  config.output_bias = bias;
  config.mlp_bias = architecture == Architecture::kLlama && keys.Bool("mlp_bias", false);
  config.qk_norm = architecture == Architecture::kQwen3;
  config.tied_head = keys.Bool("tie_word_embeddings", false);
  ReadRope(keys, config);
  if (architecture == Architecture::kLlama) {
    if (!keys.Has("layer_types")) return;
    const Json& types = keys.At("layer_types");
    if (!types.is_array() || static_cast<int64_t>(types.size()) != config.num_layers) {
      return keys.Complain(absl::StrCat("layer_types must be a list of ", config.num_layers, " names"));
    }
    for (const Json& type : types) {
      if (type != "full_attention") keys.Refuse("'layer_types' is not supported for model_type 'llama'");
    }
    return;
  }
  ReadWindows(keys, config);
}

void ReadLearnedPositions(KeyReader& keys, ModelConfig& config) {
  config.positions = Positions::kLearned;
  config.norm = NormKind::kLayer;
  config.gated_mlp = false;
  config.num_kv_heads = config.num_heads;
  config.tied_head = keys.Bool("tie_word_embeddings", true);
  if (config.num_heads > 0 && config.hidden_size % config.num_heads != 0) {
    const ArchitectureKeys& names = KeysOf(config.architecture);
    keys.Complain(absl::StrCat(names.hidden_size, " (", config.hidden_size, ") must be a multiple of ", names.num_heads,
                               " (", config.num_heads, ")"));
  }
  config.head_dim = config.num_heads > 0 ? config.hidden_size / config.num_heads : 0;
}

void ReadOpt(KeyReader& keys, ModelConfig& config) {
  ReadLearnedPositions(keys, config);
  config.norm_eps = 1e-5;
  const int64_t embedding = keys.Int("word_embed_proj_dim", config.hidden_size);
  if (embedding == 0) keys.Complain("word_embed_proj_dim must be at least 1, not 0");
  config.embedding_size = embedding == config.hidden_size ? 0 : embedding;
  config.post_norm = !keys.Bool("do_layer_norm_before", true);
  config.final_norm = !config.post_norm && !keys.Bool("_remove_final_layer_norm", false);
  config.norm_weights = keys.Bool("layer_norm_elementwise_affine", true);
  config.qkv_bias = config.output_bias = config.mlp_bias = keys.Bool("enable_bias", true);
}

void ReadGpt2(KeyReader& keys, ModelConfig& config) {
  ReadLearnedPositions(keys, config);
  config.qkv_bias = config.output_bias = config.mlp_bias = true;
  keys.RefuseUnless("scale_attn_weights", true);
  keys.RefuseUnless("scale_attn_by_inverse_layer_idx", false);
  keys.RefuseUnless("add_cross_attention", false);
}

// What no architecture here has: named for what it is, before a missing key is.
void RefuseOthers(KeyReader& keys) {
  for (const char* key :
       {"num_experts", "num_local_experts", "n_routed_experts", "num_moe_experts", "moe_num_experts"}) {
    if (keys.Has(key)) return keys.Refuse(absl::StrCat("mixture-of-experts models ('", key, "') are not supported"));
  }
  for (const char* key : {"vision_config", "audio_config", "visual", "text_config"}) {
    if (keys.Has(key)) return keys.Refuse(absl::StrCat("multimodal models ('", key, "') are not supported"));
  }
  keys.RefuseUnless("is_causal", true);
  if (keys.Has("quantization_config")) keys.Refuse("quantised checkpoints ('quantization_config') are not supported");
}

void ReadArchitecture(KeyReader& keys, ModelConfig& config) {
  const std::string type = keys.String("model_type");
  if (!keys.status().ok()) return;
  RefuseOthers(keys);
  for (const ArchitectureKeys& known : kArchitectures) {
    if (type == known.model_type) {
      config.architecture = known.architecture;
      return;
    }
  }
  keys.Refuse(absl::StrCat("model_type '", EscapeForMessage(type), "' is not supported; supported are ",
                           absl::StrJoin(kArchitectures, ", ", [](std::string* out, const ArchitectureKeys& one) {
                             absl::StrAppend(out, one.model_type);
                           })));
}

// A value head is what `transformers` calls classification of sequences with one label.
void ReadHead(KeyReader& keys, ModelConfig& config) {
  if (!keys.Has("architectures")) return;
  const Json& classes = keys.At("architectures");
  if (!classes.is_array() || classes.size() != 1 || !classes[0].is_string()) {
    return keys.Complain("key 'architectures' must be a list of one name");
  }
  const std::string name = classes[0].get<std::string>();
  const ArchitectureKeys& names = KeysOf(config.architecture);
  // A checkpoint may also be of the model without a head, whose embedding is the head.
  const absl::string_view value_class = names.value_class_name;
  const std::string bare = absl::StrCat(value_class.substr(0, value_class.find("For")), "Model");
  if (name == names.class_name || name == bare) return;
  if (name != names.value_class_name) {
    return keys.Refuse(absl::StrCat("architecture '", EscapeForMessage(name), "' is not supported; supported are ",
                                    names.class_name, " and ", names.value_class_name));
  }
  const bool listed = keys.Has("id2label") && keys.At("id2label").is_object();
  const int64_t labels = listed ? static_cast<int64_t>(keys.At("id2label").size()) : keys.Int("num_labels", 2);
  if (labels != 1) keys.Refuse(absl::StrCat(name, " with ", labels, " labels is not supported; a value head has one"));
  config.head = Head::kValue;
}

void ReadActivation(KeyReader& keys, const char* key, Activation fallback, ModelConfig& config) {
  config.activation = fallback;
  if (!keys.Has(key)) return;
  const std::string name = keys.String(key);
  const auto* known = std::find_if(kActivations.begin(), kActivations.end(),
                                   [&](const ActivationName& one) { return name == one.name; });
  if (known != kActivations.end()) {
    config.activation = known->activation;
  } else if (keys.status().ok()) {
    keys.Refuse(absl::StrCat(key, " '", EscapeForMessage(name), "' is not supported; supported are ",
                             absl::StrJoin(kActivations, ", ", [](std::string* out, const ActivationName& one) {
                               absl::StrAppend(out, one.name);
                             })));
  }
}

void ReadDType(KeyReader& keys, ModelConfig& config) {
  const char* key = keys.Has("dtype") ? "dtype" : "torch_dtype";
  const std::string name = keys.String(key, "float32");
  if (!keys.status().ok()) return;
  const absl::StatusOr<DType> dtype = ParseDType(name);
  if (dtype.ok() && (*dtype == DType::kF32 || *dtype == DType::kBF16 || *dtype == DType::kF16)) {
    config.dtype = *dtype;
  } else {
    keys.Refuse(absl::StrCat(key, " '", EscapeForMessage(name),
                             "' is not supported; supported are float32, bfloat16 and float16"));
  }
}

Activation UsualActivation(Architecture architecture) {
  switch (architecture) {
    case Architecture::kOpt:
      return Activation::kRelu;
    case Architecture::kGpt2:
      return Activation::kGeluTanh;
    default:
      return Activation::kSilu;
  }
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view text) {
  TDOCK_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text, kMaxConfigDepth));
  KeyReader keys(json);
  ModelConfig config;
  ReadArchitecture(keys, config);
  // Of an architecture that is not known, the other keys mean nothing.
  TDOCK_RETURN_IF_ERROR(keys.status());
  const ArchitectureKeys& names = KeysOf(config.architecture);
  config.vocab_size = keys.Int("vocab_size");
  config.hidden_size = keys.Int(names.hidden_size);
  // GPT-2's mlp is four times as wide where it is not said.
  const bool gpt2 = config.architecture == Architecture::kGpt2;
  const bool small = config.hidden_size > 0 && config.hidden_size <= kMaxSize;
  config.intermediate_size =
      keys.Int(names.intermediate_size, gpt2 && small ? std::optional(4 * config.hidden_size) : std::nullopt);
  config.num_layers = keys.Int(names.num_layers);
  config.num_heads = keys.Int(names.num_heads);
  config.max_positions = keys.Int(names.max_positions);
  const double usual_eps = gpt2 ? 1e-5 : 1e-6;
  config.norm_eps = names.norm_eps == nullptr ? usual_eps : keys.Float(names.norm_eps, usual_eps);
  ReadActivation(keys, names.activation, UsualActivation(config.architecture), config);
  ReadDType(keys, config);
  ReadHead(keys, config);
  if (config.architecture == Architecture::kOpt) {
    ReadOpt(keys, config);
  } else if (gpt2) {
    ReadGpt2(keys, config);
  } else {
    ReadRotaryFamily(keys, config);
  }
  const auto tokens = [&](const char* key, std::optional<int64_t> usual) -> std::vector<int64_t> {
    if (keys.Has(key) || keys.IsNull(key)) return keys.TokenIds(key);
    if (!usual || *usual >= config.vocab_size) return {};
    return {*usual};
  };
  const auto first = [](const std::vector<int64_t>& ids) {
    return ids.empty() ? std::nullopt : std::optional(ids.front());
  };
  const std::vector<int64_t> ends = tokens("eos_token_id", names.tokens.eos);
  config.eos_token_id = first(ends);
  if (ends.size() > 1) config.other_eos_token_ids.assign(ends.begin() + 1, ends.end());
  config.bos_token_id = first(tokens("bos_token_id", names.tokens.bos));
  config.pad_token_id = first(tokens("pad_token_id", names.tokens.pad));
  // Files say that there is no padding by a number that is no token.
  if (config.pad_token_id && (*config.pad_token_id < 0 || *config.pad_token_id >= config.vocab_size)) {
    config.pad_token_id.reset();
  }
  TDOCK_RETURN_IF_ERROR(keys.status());
  TDOCK_RETURN_IF_ERROR(Validate(config));
  return config;
}

absl::StatusOr<std::vector<int64_t>> ParseGenerationEnds(absl::string_view text) {
  TDOCK_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text, kMaxConfigDepth));
  KeyReader keys(json);
  std::vector<int64_t> ids = keys.TokenIds("eos_token_id");
  TDOCK_RETURN_IF_ERROR(keys.status());
  return ids;
}

absl::Status OverrideRope(absl::string_view text, ModelConfig* config) {
  if (config->positions != Positions::kRotary) {
    return absl::InvalidArgumentError(absl::StrCat("model_type '", Name(config->architecture),
                                                   "' has no rotary positions whose scaling could be set"));
  }
  TDOCK_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text, kMaxConfigDepth));
  KeyReader keys(json);
  RopeConfig rope;
  ReadRopeParameters(keys, rope);
  rope.theta = keys.Float("rope_theta", config->rope.theta);
  TDOCK_RETURN_IF_ERROR(keys.status());
  ModelConfig changed = *config;
  changed.rope = rope;
  TDOCK_RETURN_IF_ERROR(Validate(changed));
  *config = std::move(changed);
  return absl::OkStatus();
}

}  // namespace tdock::model
