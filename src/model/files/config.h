// What config.json of the Hugging Face layout says about a decoder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/files/rope.h"
#include "tdock/dtype.h"

namespace tdock::model {

// Whose names the keys of config.json and the weights have. What a decoder computes is in the fields of ModelConfig.
enum class Architecture { kLlama, kMistral, kQwen2, kQwen3, kOpt, kGpt2 };

enum class NormKind {
  kRms,    // x / rms(x) · weight
  kLayer,  // (x - mean) / deviation · weight + bias
};

enum class Activation {
  kSilu,
  kRelu,
  kGelu,
  kGeluTanh,  // its approximation by a hyperbolic tangent
};

enum class Positions {
  kRotary,   // queries and keys are rotated
  kLearned,  // a vector for each position is added to the embedding
};

enum class Head {
  kTokens,  // logits of the next token
  kValue,   // one number for each token: a critic's value, or a reward
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t embedding_size = 0;  // of a token, where it is not hidden_size: two projections lie between; else 0
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_positions = 0;

  NormKind norm = NormKind::kRms;
  double norm_eps = 1e-6;
  bool norm_weights = true;  // false: norms have no parameters
  bool post_norm = false;    // norms follow attention and mlp, instead of preceding them
  bool final_norm = true;
  bool qk_norm = false;  // RMS norms of queries and keys, head by head, before they are rotated

  Activation activation = Activation::kSilu;
  bool gated_mlp = true;  // down(activation(gate(x)) · up(x)), otherwise down(activation(up(x)))
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;

  Positions positions = Positions::kRotary;
  RopeConfig rope;
  // For each layer how many tokens one sees, itself included; 0: all before it. Empty: 0 for all layers.
  std::vector<int64_t> windows;

  Head head = Head::kTokens;
  bool tied_head = false;     // the head of tokens is the embedding
  DType dtype = DType::kF32;  // of the weights in the files: float32, bfloat16 or float16
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> eos_token_id;
  std::vector<int64_t> other_eos_token_ids;  // that end a text as well
  std::optional<int64_t> pad_token_id;

  bool operator==(const ModelConfig&) const = default;

  int64_t embedding() const { return embedding_size > 0 ? embedding_size : hidden_size; }
  // Positions that a sequence may have: more than max_positions where the rope is stretched, as `transformers` runs it.
  int64_t context_length() const;
  bool has_own_head() const { return head == Head::kValue || !tied_head; }
  int64_t window(size_t layer) const { return windows.empty() ? 0 : windows[layer]; }
};

// Bounds of the sizes: the bytes of the largest weight can be counted in 64 bits, and what is made before the weights
// are known to exist (a list of layers) or beside them (a mask of positions) fits a machine's memory.
inline constexpr int64_t kMaxSize = int64_t{1} << 24;  // of vocabulary, hidden and intermediate
inline constexpr int64_t kMaxLayers = int64_t{1} << 14;
inline constexpr int64_t kMaxHeads = int64_t{1} << 16;
inline constexpr int64_t kMaxHeadDim = int64_t{1} << 16;
inline constexpr int64_t kMaxPositions = int64_t{1} << 24;

// The longest text of a configuration that is read.
inline constexpr uint64_t kMaxConfigBytes = uint64_t{4} << 20;

// InvalidArgument names every contradiction, with the keys that config.json of the architecture has.
absl::Status Validate(const ModelConfig& config);

// Parses config.json and validates it. Architectures, activations and variants that the decoder does not have are
// Unimplemented and named: guessing would give wrong logits without a word. Any other fault is InvalidArgument.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json);

// The rope of `config` as a run's configuration overrides it: `json` is an object of the form of config.json's
// rope_scaling ({"rope_type": "yarn", "factor": 1.5, …}).
absl::Status OverrideRope(absl::string_view json, ModelConfig* config);

// The text of a config.json that ParseModelConfig reads back to an equal value and Python `transformers` opens.
std::string ModelConfigJson(const ModelConfig& config);

// The ids that end a text, as generation_config.json says.
absl::StatusOr<std::vector<int64_t>> ParseGenerationEnds(absl::string_view json);

// Every id that ends a text.
std::vector<int64_t> EosTokenIds(const ModelConfig& config);

// "llama", "mistral", "qwen2", "qwen3", "opt", "gpt2".
absl::string_view Name(Architecture architecture);

}  // namespace tdock::model
