// The names that the architectures give to the same things in config.json.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "model/files/config.h"

namespace tdock::model {

// Ids that `transformers` takes where config.json does not say them.
struct UsualTokens {
  std::optional<int64_t> bos, eos, pad;
};

struct ArchitectureKeys {
  Architecture architecture;
  const char* model_type;
  const char* class_name;        // with a head of tokens
  const char* value_class_name;  // with one of a value
  const char* hidden_size;
  const char* intermediate_size;
  const char* num_layers;
  const char* num_heads;
  const char* max_positions;
  const char* norm_eps;  // nullptr: it cannot be chosen
  const char* activation;
  UsualTokens tokens;
};

// Llama and those that took over its names.
constexpr ArchitectureKeys LikeLlama(Architecture architecture, const char* model_type, const char* class_name,
                                     const char* value_class_name, UsualTokens tokens) {
  return {architecture,
          model_type,
          class_name,
          value_class_name,
          "hidden_size",
          "intermediate_size",
          "num_hidden_layers",
          "num_attention_heads",
          "max_position_embeddings",
          "rms_norm_eps",
          "hidden_act",
          tokens};
}

inline constexpr std::array<ArchitectureKeys, 6> kArchitectures = {{
    LikeLlama(Architecture::kLlama, "llama", "LlamaForCausalLM", "LlamaForSequenceClassification", {1, 2, {}}),
    LikeLlama(Architecture::kMistral, "mistral", "MistralForCausalLM", "MistralForSequenceClassification", {1, 2, {}}),
    LikeLlama(Architecture::kQwen2, "qwen2", "Qwen2ForCausalLM", "Qwen2ForSequenceClassification", {}),
    LikeLlama(Architecture::kQwen3, "qwen3", "Qwen3ForCausalLM", "Qwen3ForSequenceClassification", {}),
    {Architecture::kOpt,
     "opt",
     "OPTForCausalLM",
     "OPTForSequenceClassification",
     "hidden_size",
     "ffn_dim",
     "num_hidden_layers",
     "num_attention_heads",
     "max_position_embeddings",
     nullptr,
     "activation_function",
     {2, 2, 1}},
    {Architecture::kGpt2,
     "gpt2",
     "GPT2LMHeadModel",
     "GPT2ForSequenceClassification",
     "n_embd",
     "n_inner",
     "n_layer",
     "n_head",
     "n_positions",
     "layer_norm_epsilon",
     "activation_function",
     {50256, 50256, std::nullopt}},
}};

constexpr const ArchitectureKeys& KeysOf(Architecture architecture) {
  return kArchitectures[static_cast<size_t>(architecture)];
}

struct ActivationName {
  const char* name;
  Activation activation;
};

// The first name of an activation is the one that is written.
inline constexpr std::array<ActivationName, 6> kActivations = {{{"silu", Activation::kSilu},
                                                                {"relu", Activation::kRelu},
                                                                {"gelu", Activation::kGelu},
                                                                {"gelu_new", Activation::kGeluTanh},
                                                                {"gelu_pytorch_tanh", Activation::kGeluTanh},
                                                                {"swish", Activation::kSilu}}};

}  // namespace tdock::model
