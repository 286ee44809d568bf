// For tests: configurations of small models.
#pragma once

#include <vector>

#include "model/files/config.h"

namespace tdock::model {

// Two layers with grouped-query attention, whose sizes all differ.
inline ModelConfig TinyConfig(Architecture architecture, bool tied_head) {
  ModelConfig config;
  config.architecture = architecture;
  config.vocab_size = 29;
  config.hidden_size = 20;
  config.intermediate_size = 28;
  config.num_layers = 2;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 4;
  config.max_positions = 48;
  config.norm_eps = 1e-5;
  config.rope.theta = 500.0;
  config.tied_head = tied_head;
  config.qkv_bias = architecture == Architecture::kQwen2;
  return config;
}

// The same sizes with the parts of OPT and GPT-2: learned positions, LayerNorm, biases everywhere, a plain mlp.
inline ModelConfig TinyLearnedConfig(Architecture architecture) {
  ModelConfig config = TinyConfig(architecture, /*tied_head=*/true);
  config.num_heads = config.num_kv_heads = 5;
  config.positions = Positions::kLearned;
  config.norm = NormKind::kLayer;
  config.activation = architecture == Architecture::kOpt ? Activation::kRelu : Activation::kGeluTanh;
  config.gated_mlp = false;
  config.qkv_bias = config.output_bias = config.mlp_bias = true;
  config.rope = {};
  return config;
}

// One of each kind that the decoder tells apart.
inline std::vector<ModelConfig> TinyConfigs() {
  ModelConfig ungrouped = TinyConfig(Architecture::kLlama, /*tied_head=*/true);
  ungrouped.num_kv_heads = ungrouped.num_heads;
  ungrouped.qkv_bias = ungrouped.output_bias = ungrouped.mlp_bias = true;
  ModelConfig windows = TinyConfig(Architecture::kQwen2, /*tied_head=*/false);
  windows.windows = {4, 0};
  ModelConfig normed = TinyConfig(Architecture::kQwen3, /*tied_head=*/false);
  normed.qk_norm = true;
  normed.rope = {.type = RopeType::kYarn, .theta = 500.0, .factor = 4.0, .original_max_positions = 12};
  ModelConfig behind = TinyLearnedConfig(Architecture::kOpt);
  behind.embedding_size = 12;
  behind.post_norm = true;
  behind.final_norm = false;
  return {TinyConfig(Architecture::kLlama, /*tied_head=*/false),
          TinyConfig(Architecture::kQwen2, /*tied_head=*/true),
          windows,
          normed,
          TinyLearnedConfig(Architecture::kOpt),
          behind,
          TinyLearnedConfig(Architecture::kGpt2),
          ungrouped};
}

}  // namespace tdock::model
