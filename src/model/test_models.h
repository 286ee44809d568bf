// For tests: decoders that are small and have no weight at a value that hides a mistake.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <vector>

#include "model/decoder.h"

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
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 500.0;
  config.tied_head = tied_head;
  config.qkv_bias = architecture == Architecture::kQwen2;
  return config;
}

// One of each kind that the decoder tells apart.
inline std::vector<ModelConfig> TinyConfigs() {
  ModelConfig ungrouped = TinyConfig(Architecture::kLlama, /*tied_head=*/true);
  ungrouped.num_kv_heads = ungrouped.num_heads;
  return {TinyConfig(Architecture::kLlama, /*tied_head=*/false), TinyConfig(Architecture::kQwen2, /*tied_head=*/true),
          ungrouped};
}

// Random weights large enough for attention to be far from uniform, with norm weights other than one and biases other
// than zero.
inline Decoder TinyDecoder(const ModelConfig& config, uint64_t seed, const at::Device& device) {
  at::NoGradGuard no_grad;
  Decoder decoder = Decoder::Random(config, seed, device);
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed + 1);
  for (const at::Tensor& parameter : decoder.parameters()) {
    if (parameter.dim() == 1) parameter.add_(at::normal(0.0, 0.5, parameter.sizes(), generator).to(device));
  }
  decoder.parameters().front().mul_(50);  // the embedding
  return decoder;
}

// Token ids below `vocab_size`, int64 [rows, length].
inline at::Tensor RandomTokens(int64_t rows, int64_t length, int64_t vocab_size, uint64_t seed,
                               const at::Device& device) {
  return at::randint(0, vocab_size, {rows, length}, at::make_generator<at::CPUGeneratorImpl>(seed), at::kLong)
      .to(device);
}

// The positions 0 … length-1 of each row, int64 [rows, length].
inline at::Tensor PositionsFromZero(int64_t rows, int64_t length, const at::Device& device) {
  return at::arange(length, at::TensorOptions().dtype(at::kLong).device(device)).expand({rows, length});
}

// The logits of whole rows, [rows, length, vocab], without a cache.
inline at::Tensor FullLogits(const Decoder& decoder, const at::Tensor& tokens) {
  return decoder.Logits(
      decoder.Hidden({tokens, PositionsFromZero(tokens.size(0), tokens.size(1), tokens.device()), {}}));
}

}  // namespace tdock::model
