// How a recipe uses its model: precision, recomputation, rope scaling and adapters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "core/config/spec.h"
#include "model/decoder/decoder.h"

namespace tdock::trainer {

struct RopeOverride {
  std::string type;     // empty: as config.json says
  double factor = 0.0;  // 0: not set
  int64_t original_max_position_embeddings = 0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double attention_factor = 0.0;  // 0: derived from the factor
  double beta_fast = 32.0;
  double beta_slow = 1.0;

  // In the form of config.json; empty if nothing is overridden.
  std::string json() const;
};

struct ModelOptions {
  at::ScalarType compute_dtype = at::kFloat;
  at::ScalarType param_dtype = at::kFloat;
  bool batch_invariant = true;
  model::Recomputed recomputed = model::Recomputed::kNothing;
  double dropout = 0.0;
  RopeOverride rope_scaling;
  int64_t lora_rank = 0;  // 0: no adapters
  double lora_alpha = 16.0;
  double lora_dropout = 0.0;
  std::string target_modules;                               // comma-separated names; empty: all linear layers
  std::string modules_to_save;                              // likewise; empty: none
  std::optional<at::ScalarType> save_dtype = std::nullopt;  // nullopt: as in the model's files

  // Of the weights while they are trained.
  at::ScalarType weight_dtype() const { return compute_dtype == at::kDouble ? at::kDouble : param_dtype; }

  // Prepares a decoder for training. InvalidArgument names modules that it does not have.
  absl::Status Apply(uint64_t lora_seed, model::Decoder& decoder) const;
};

// Binds the keys of a section, whose name `prefix` is: "model.".
void BindModelOptions(config::Spec& spec, const std::string& prefix, ModelOptions& options);

}  // namespace tdock::trainer
