// config.json out.
#include <algorithm>

#include "core/base/json_text.h"
#include "model/files/config.h"
#include "model/files/config_keys.h"

namespace tdock::model {
namespace {

using OrderedJson = nlohmann::ordered_json;

const char* NameOf(Activation activation) {
  return std::find_if(kActivations.begin(), kActivations.end(),
                      [&](const ActivationName& one) { return one.activation == activation; })
      ->name;
}

OrderedJson RopeScaling(const RopeConfig& rope) {
  const std::string type(Name(rope.type));
  // Both names of the key: older readers know only the second.
  OrderedJson json = {{"rope_type", type}, {"type", type}, {"factor", rope.factor}};
  if (rope.original_max_positions > 0) json["original_max_position_embeddings"] = rope.original_max_positions;
  if (rope.type == RopeType::kLlama3) {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.type == RopeType::kYarn) {
    json["beta_fast"] = rope.beta_fast;
    json["beta_slow"] = rope.beta_slow;
    if (rope.attention_factor) json["attention_factor"] = *rope.attention_factor;
    if (rope.mscale) json["mscale"] = *rope.mscale;
    if (rope.mscale_all_dim) json["mscale_all_dim"] = *rope.mscale_all_dim;
    if (!rope.truncate) json["truncate"] = false;
  }
  return json;
}

void AddWindows(const ModelConfig& c, OrderedJson& json) {
  const int64_t window = c.windows.empty() ? 0 : *std::max_element(c.windows.begin(), c.windows.end());
  if (window > 0) {
    json["sliding_window"] = window;
  } else {
    json["sliding_window"] = nullptr;
  }
  if (c.architecture == Architecture::kMistral) return;
  json["use_sliding_window"] = window > 0;
  if (window == 0) return;
  OrderedJson types = OrderedJson::array();
  for (const int64_t one : c.windows) types.push_back(one > 0 ? "sliding_attention" : "full_attention");
  json["layer_types"] = types;
  json["max_window_layers"] =
      std::find_if(c.windows.begin(), c.windows.end(), [](int64_t one) { return one > 0; }) - c.windows.begin();
}

void AddRotaryFamily(const ModelConfig& c, OrderedJson& json) {
  json["num_key_value_heads"] = c.num_kv_heads;
  json["head_dim"] = c.head_dim;
  json["rope_theta"] = c.rope.theta;
  if (c.rope.type == RopeType::kDefault) {
    json["rope_scaling"] = nullptr;
  } else {
    json["rope_scaling"] = RopeScaling(c.rope);
  }
  if (c.architecture == Architecture::kLlama || c.architecture == Architecture::kQwen3) {
    json["attention_bias"] = c.qkv_bias;
  }
  if (c.architecture == Architecture::kLlama) {
    json["mlp_bias"] = c.mlp_bias;
  } else {
    AddWindows(c, json);
  }
}

void AddOpt(const ModelConfig& c, OrderedJson& json) {
  json["word_embed_proj_dim"] = c.embedding();
  json["do_layer_norm_before"] = !c.post_norm;
  json["_remove_final_layer_norm"] = !c.final_norm && !c.post_norm;
  json["layer_norm_elementwise_affine"] = c.norm_weights;
  json["enable_bias"] = c.mlp_bias;
  json["dropout"] = 0.0;
  json["attention_dropout"] = 0.0;
}

void AddGpt2(OrderedJson& json) {
  json["scale_attn_weights"] = true;
  for (const char* dropout : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) json[dropout] = 0.0;
}

}  // namespace

std::string ModelConfigJson(const ModelConfig& c) {
  const ArchitectureKeys& names = KeysOf(c.architecture);
  OrderedJson json = {
      {"architectures", {c.head == Head::kValue ? names.value_class_name : names.class_name}},
      {"model_type", names.model_type},
      {"vocab_size", c.vocab_size},
      {names.hidden_size, c.hidden_size},
      {names.intermediate_size, c.intermediate_size},
      {names.num_layers, c.num_layers},
      {names.num_heads, c.num_heads},
      {names.max_positions, c.max_positions},
      {names.activation, NameOf(c.activation)},
  };
  if (names.norm_eps != nullptr) json[names.norm_eps] = c.norm_eps;
  if (c.architecture == Architecture::kOpt) {
    AddOpt(c, json);
  } else if (c.architecture == Architecture::kGpt2) {
    AddGpt2(json);
  } else {
    AddRotaryFamily(c, json);
  }
  if (c.head == Head::kValue) {
    json["id2label"] = {{"0", "LABEL_0"}};
    json["label2id"] = {{"LABEL_0", 0}};
  }
  json["tie_word_embeddings"] = c.tied_head;
  json["torch_dtype"] = std::string(Name(c.dtype));
  json["use_cache"] = true;
  const auto put_id = [&](const char* key, std::optional<int64_t> id) {
    if (id) {
      json[key] = *id;
    } else {
      json[key] = nullptr;
    }
  };
  put_id("bos_token_id", c.bos_token_id);
  put_id("eos_token_id", c.eos_token_id);
  if (!c.other_eos_token_ids.empty()) json["eos_token_id"] = EosTokenIds(c);
  put_id("pad_token_id", c.pad_token_id);
  return JsonText(json, 2) + "\n";
}

}  // namespace tdock::model
