// What adapter_config.json of the PEFT layout says about low-rank adapters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock::model {

// The first of the two factors is drawn uniformly between ±1/sqrt(inputs), as PEFT does; the second is zero.
struct LoraConfig {
  int64_t rank = 8;
  double alpha = 8.0;
  bool rank_stabilised = false;  // scale alpha/sqrt(rank) (Kalajdzievski 2023, arXiv:2312.03732), not alpha/rank
  // Names of linear layers as config.json's architecture has them, or the ends of their paths: "q_proj",
  // "self_attn.q_proj". Empty: all linear layers but the head.
  std::vector<std::string> targets = {};
  std::vector<int64_t> layers = {};  // numbers of the layers that are adapted; empty: all
  double dropout = 0.0;              // in training, of the inputs of the first factor; 0 ≤ dropout < 1
  // Modules that are trained whole, and lie beside the adapters: the ends of their paths. As in PEFT, "norm" is the end
  // of "model.layers.0.input_layernorm", too.
  std::vector<std::string> saved = {};

  double scale() const;
  // True for the path of a module of `saved`.
  bool saves(absl::string_view module) const;
  bool operator==(const LoraConfig&) const = default;
};

// InvalidArgument names every value that cannot be.
absl::Status Validate(const LoraConfig& config);

// Parses adapter_config.json. Unimplemented names a variant that is not read (DoRA, ranks by pattern, trained biases,
// initialisations that change the base weights), and every key that is not known,
// unless it is null, false or empty.
absl::StatusOr<LoraConfig> ParseLoraConfig(absl::string_view json);

struct AdapterFacts {
  std::string base_model;     // folder or name of the model that is adapted
  bool inputs_first = false;  // the architecture stores linear weights as [in, out]
};

// The text of an adapter_config.json that `peft` opens.
std::string LoraConfigJson(const LoraConfig& config, const AdapterFacts& facts);

}  // namespace tdock::model
