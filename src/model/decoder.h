// A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU.
//
// Shapes: B rows, T tokens of a row, S slots of the cache, C hidden size, V vocabulary, as far as it
// is used.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "model/config.h"

namespace tdock::model {

// One forward pass's input.
struct TokenBatch {
  at::Tensor tokens;     // int64 [B, T]
  at::Tensor positions;  // int64 [B, T]: the place of each token in its own sequence, from 0
  // bool [B, 1, T, T], true where a token (row) sees another (column); every token sees at least itself. Undefined:
  // each token sees itself and those before it. Not used with a cache.
  at::Tensor visible;
};

// Keys and values of the tokens seen so far: a token at position p of row b lives in slot p of row b, so rows of
// different lengths need no padding, and what a padding token wrote is overwritten by the token that follows.
// Not thread-safe.
class KvCache {
 public:
  // Room for `slots` positions of `rows` rows.
  KvCache(const ModelConfig& config, int64_t rows, int64_t slots, const at::TensorOptions& options);

  int64_t rows() const { return rows_; }
  int64_t slots() const { return slots_; }

  // From now on tokens have positions below `length` ≤ slots(), which is checked on the CPU only, and slots from there
  // on are not looked at.
  void SetLength(int64_t length);

  // Row i becomes the old row index[i] (int64, on the cache's device): drops, repeats and reorders rows.
  void SelectRows(const at::Tensor& index);

 private:
  friend class Decoder;
  struct Layer {
    at::Tensor keys;    // [B, S, kv heads, head dim]
    at::Tensor values;  // the same
  };
  int64_t rows_;
  int64_t slots_;
  int64_t length_;
  std::vector<Layer> layers_;
};

// Const methods are thread-safe. Methods throw c10::Error where libtorch does (shapes, memory).
class Decoder {
 public:
  // Weights drawn from `seed`: linear layers N(0, 1/fan_in), with the projections back into the residual stream divided
  // by sqrt(2·layers) (Radford et al. 2019, GPT-2, §2.3), the embedding N(0, 0.02²), norms one, biases zero. The same
  // on every device. `config` must be valid.
  static Decoder Random(const ModelConfig& config, uint64_t seed, const at::Device& device);

  // A decoder whose weights are whatever is in memory: write all of NamedWeights() before it is used.
  static Decoder Uninitialised(const ModelConfig& config, const at::Device& device);

  // Names and shapes of the weights that a decoder would have, as NamedWeights() lists them, without the memory for it.
  static std::vector<std::pair<std::string, std::vector<int64_t>>> WeightShapes(const ModelConfig& config);

  // A decoder with the same weights in memory of its own, which takes no gradients.
  Decoder Clone() const;

  const ModelConfig& config() const { return config_; }
  at::Device device() const { return embedding_.device(); }

  // The hidden states after the last norm, [B, T, C]. With a cache, tokens also see the slots of their row up to their
  // own position, and their keys and values are stored in it; no gradients then.
  at::Tensor Hidden(const TokenBatch& batch, KvCache* cache = nullptr) const;

  // From now on Logits() gives those of the first `tokens` ids alone, as if the vocabulary ended there: rows behind the
  // last token of the tokenizer, which checkpoints have to fill up a size, are then never sampled, and no probability
  // is theirs. 1 ≤ `tokens` ≤ vocab_size. Saved with a checkpoint are all rows.
  void LimitVocabulary(int64_t tokens);

  // Hidden states [..., C] to logits [..., V].
  at::Tensor Logits(const at::Tensor& hidden) const;

  // The parameters as they are trained: fused projections are one tensor. Always in the same order.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  int64_t parameter_count() const;
  void SetTrainable(bool trainable);

  // Every weight under its Hugging Face name: views that share memory with the parameters, in the order of the layers.
  // A tied head is not listed.
  std::vector<std::pair<std::string, at::Tensor>> NamedWeights() const;

 private:
  struct Layer {
    at::Tensor attention_norm;  // [C]
    at::Tensor qkv;             // [(heads + 2·kv heads)·head dim, C]
    at::Tensor qkv_bias;        // [(heads + 2·kv heads)·head dim] or undefined
    at::Tensor output;          // [C, heads·head dim]
    at::Tensor mlp_norm;        // [C]
    at::Tensor gate_up;         // [2·intermediate, C]
    at::Tensor down;            // [C, intermediate]
  };
  // What all layers of one pass share.
  struct Pass {
    at::Tensor cos, sin;  // [B, T, 1, head dim]
    at::Tensor visible;   // as in TokenBatch, or [B, 1, T, length] with a cache
    bool causal = false;
    at::Tensor cache_rows;     // int64 [B·T]: where each token goes in a cache layer seen as [B·S, …]
    int64_t cache_length = 0;  // how many slots are looked at
  };

  // Without rotary tables.
  Decoder(const ModelConfig& config, const at::Device& device);
  void CollectParameters();
  void MakeRotaryTables();
  Pass Prepare(const TokenBatch& batch, const KvCache* cache) const;
  at::Tensor Attention(const Layer& layer, const at::Tensor& normed_BTC, const Pass& pass, KvCache::Layer* cache) const;
  at::Tensor Mlp(const Layer& layer, const at::Tensor& normed_BTC) const;

  ModelConfig config_;
  int64_t used_tokens_;   // V
  at::Tensor embedding_;  // [vocab_size, C]
  std::vector<Layer> layers_;
  at::Tensor norm_;  // [C]
  at::Tensor head_;  // [vocab_size, C], or undefined where it is tied to the embedding
  std::vector<at::Tensor> parameters_;
  at::Tensor rotary_cos_, rotary_sin_;  // [max positions, head dim]
};

}  // namespace tdock::model
