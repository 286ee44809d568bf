// What config.json of the Hugging Face layout says about a decoder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock::model {

enum class Architecture { kLlama, kQwen2 };

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_positions = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool tied_head = false;  // the output head is the embedding
  bool qkv_bias = false;
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> eos_token_id;
  std::optional<int64_t> pad_token_id;

  bool operator==(const ModelConfig&) const = default;
};

// Bounds of the sizes: the bytes of the largest weight can be counted in 64 bits, and what is made before the weights
// are known to exist (a list of layers) or beside them (a table of positions) fits a machine's memory.
inline constexpr int64_t kMaxSize = int64_t{1} << 24;  // of vocabulary, hidden and intermediate
inline constexpr int64_t kMaxLayers = int64_t{1} << 14;
inline constexpr int64_t kMaxHeads = int64_t{1} << 16;
inline constexpr int64_t kMaxHeadDim = int64_t{1} << 16;
inline constexpr int64_t kMaxPositions = int64_t{1} << 22;

// InvalidArgument names the first key that is wrong, or every contradiction between sizes.
absl::Status Validate(const ModelConfig& config);

// Parses config.json and validates it. Architectures, activations and rope scalings that the decoder does not have are
// Unimplemented and named: guessing would give wrong logits without a word. Any other fault is InvalidArgument.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json);

// The text of a config.json that ParseModelConfig reads back to an equal value and Python `transformers` opens.
std::string ModelConfigJson(const ModelConfig& config);

}  // namespace tdock::model
