// Rotary positions: what config.json says about their frequencies, and the frequencies.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tdock::model {

// How the frequencies are stretched for sequences longer than those of the pre-training.
enum class RopeType {
  kDefault,
  kLinear,   // Chen et al. 2023, arXiv:2306.15595: all frequencies divided by the factor
  kDynamic,  // NTK-aware: a larger base, for sequences above max_position_embeddings only
  kLlama3,   // Llama 3.1: low frequencies divided by the factor, high ones kept, those between mixed
  kYarn,     // Peng et al. 2023, arXiv:2309.00071: the same by the number of rotations, and warmer attention
};

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  // kLlama3, kYarn: the longest sequence of the pre-training; 0: max_position_embeddings.
  int64_t original_max_positions = 0;
  // kLlama3.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // kYarn. Without an attention factor, it follows from the factor and the two mscales.
  std::optional<double> attention_factor = std::nullopt;
  std::optional<double> mscale = std::nullopt;
  std::optional<double> mscale_all_dim = std::nullopt;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncate = true;

  bool operator==(const RopeConfig&) const = default;
};

// As config.json names it: "default", "linear", "dynamic", "llama3", "yarn".
absl::string_view Name(RopeType type);
std::optional<RopeType> ParseRopeType(absl::string_view name);

struct RopeFrequencies {
  std::vector<double> per_pair;  // [head dim / 2], in radians for a position
  double scale = 1.0;            // of cosines and sines
};

// `max_positions` is max_position_embeddings. `length` is that of the longest sequence of a pass, which only kDynamic
// asks for. The formulas are those of `transformers` (modeling_rope_utils.py).
RopeFrequencies FrequenciesOf(const RopeConfig& config, int64_t head_dim, int64_t max_positions, int64_t length);

}  // namespace tdock::model
