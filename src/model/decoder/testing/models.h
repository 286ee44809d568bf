// For tests: decoders that are small and have no weight at a value that hides a mistake.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <vector>

#include "model/decoder/decoder.h"
#include "model/files/testing/configs.h"

namespace tdock::model {

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
