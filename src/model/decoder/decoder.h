// Decoders of language models, put together from the parts in layers.h as ModelConfig says.
//
// Shapes: B rows, T tokens of a row, S slots of the cache, C hidden size, E embedding size, V vocabulary, as far as it
// is used.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "model/decoder/kv_cache.h"
#include "model/decoder/layers.h"
#include "model/decoder/token_batch.h"
#include "model/files/adapter_config.h"
#include "model/files/config.h"

namespace tdock::model {

// What of each layer is computed again for the gradients, instead of being kept.
enum class Recomputed {
  kNothing,
  kAttentionCore,  // the products of queries, keys and values
  kMlp,
  kAttentionCoreAndMlp,
  kLayers,
};

// Const methods are thread-safe. Methods throw c10::Error where libtorch does (shapes, memory). A decoder must be
// there, unmoved, until the gradients of what it gave are computed.
class Decoder {
 public:
  // Weights drawn from `seed`: linear layers N(0, 1/fan_in), with the projections back into the residual stream divided
  // by sqrt(2·layers) (Radford et al. 2019, GPT-2, §2.3), the embeddings N(0, 0.02²), a value head N(0, 1/(E + 1))
  // (Stiennon et al. 2020, arXiv:2009.01325), norms one, biases zero. The same on every device. `config` must be valid.
  static Decoder Random(const ModelConfig& config, uint64_t seed, const at::Device& device,
                        at::ScalarType dtype = at::kFloat);

  // A decoder whose weights are whatever is in memory: write all of NamedWeights() before it is used.
  static Decoder Uninitialised(const ModelConfig& config, const at::Device& device, at::ScalarType dtype = at::kFloat);

  // Draws the weights of a value head as Random() does.
  static void InitialiseValueHead(uint64_t seed, at::Tensor& head);

  // Names and shapes of the weights that a decoder would have, as NamedWeights() lists them, without the memory for it.
  static NamedShapes WeightShapes(const ModelConfig& config);

  // A decoder with the same weights and adapters in memory of its own, which takes no gradients.
  Decoder Clone() const;

  // Low-rank adapters of linear layers (Hu et al. 2021, arXiv:2106.09685), in float32 (of float64 weights in float64).
  // They change nothing at first. From then on they, and a value head, are all that SetTrainable() makes trainable.
  // InvalidArgument names targets and layers that the decoder does not have; FailedPrecondition where it has adapters.
  absl::Status AddAdapters(const LoraConfig& config, uint64_t seed);
  // Names and shapes of the factors that AddAdapters() would make, as NamedAdapters() lists them, without the memory
  // for them. The same errors.
  absl::StatusOr<NamedShapes> AdapterShapes(const LoraConfig& config) const;
  void RemoveAdapters();
  const std::optional<LoraConfig>& lora() const { return lora_; }
  // Their factors under the names of the PEFT layout, such as "model.layers.0.self_attn.q_proj.lora_A.weight".
  NamedTensors NamedAdapters() const;
  // As Clone(), with the adapters added to the weights: weight + scale · b · a, summed up in float32 at least and
  // rounded once. This decoder stays as it is, bit for bit.
  Decoder Merged() const;

  const ModelConfig& config() const { return config_; }
  at::Device device() const { return embedding_.device(); }
  at::ScalarType dtype() const { return embedding_.scalar_type(); }

  // The dtype of activations, and of the weights in products with them. As the weights, if it was not set; bfloat16
  // with float32 weights is mixed precision. Norms compute in float32.
  void SetComputeType(at::ScalarType dtype) { compute_type_ = dtype; }
  at::ScalarType compute_type() const { return compute_type_; }

  void SetRecomputed(Recomputed what) { recomputed_ = what; }

  // With dynamic rope scaling, the frequencies follow from the longest sequence of a pass, or from the slots of a
  // cache. From now on they are those of sequences of `length` tokens, so that all passes have the same.
  void FixRopeLength(int64_t length) { rope_length_ = length; }

  // The hidden states after the last norm, [B, T, E]. With a cache, tokens also see the slots of their row up to their
  // own position, and their keys and values are stored in it; no gradients then.
  at::Tensor Hidden(const TokenBatch& batch, KvCache* cache = nullptr) const;

  // From now on Logits() gives those of the first `tokens` ids alone, as if the vocabulary ended there: rows behind the
  // last token of the tokenizer, which checkpoints have to fill up a size, are then never sampled, and no probability
  // is theirs. 1 ≤ `tokens` ≤ vocab_size. Saved with a checkpoint are all rows.
  void LimitVocabulary(int64_t tokens);

  // Hidden states [..., E] to logits [..., V], float32 at least.
  at::Tensor Logits(const at::Tensor& hidden) const;
  // Hidden states [..., E] to values [...], of a decoder with a value head; float32 at least.
  at::Tensor Values(const at::Tensor& hidden) const;

  // The parameters: fused projections are one tensor. Always in the same order; adapters come behind the weights that
  // they change.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  int64_t parameter_count() const;
  // All parameters, or, where there are adapters, those and a value head.
  void SetTrainable(bool trainable);
  // Those of the parameters that are trained.
  std::vector<at::Tensor> trainable() const;

  // Every weight under its Hugging Face name: views that share memory with the parameters, in the order of the layers.
  // A tied head is not listed, and adapters are not in it.
  NamedTensors NamedWeights() const;

 private:
  struct Layer {
    Norm attention_norm;
    Linear qkv;           // [(heads + 2·kv heads)·head dim, C]
    Norm q_norm, k_norm;  // of a head, or without weights
    Linear output;        // [C, heads·head dim]
    Norm mlp_norm;
    Linear up;  // [intermediate, C]; of a gated mlp [2·intermediate, C], the gate first
    Linear down;
  };
  static constexpr Linear Layer::*kLinears[] = {&Layer::qkv, &Layer::output, &Layer::up, &Layer::down};
  // A linear layer of the Hugging Face layout: rows of one of ours.
  struct LinearPart {
    std::string path;  // "model.layers.0.self_attn.q_proj"
    size_t layer;
    Linear Layer::*linear;
    int64_t begin, rows;
  };
  // What all layers of one pass share.
  struct Pass {
    at::Tensor cos, sin;  // [B, T, 1, head dim]
    // By window: what is seen, as in TokenBatch, or [B, 1, T, length] with a cache; undefined: all before.
    std::map<int64_t, at::Tensor> visible;
    std::vector<int64_t> lengths;
    at::Tensor cache_rows;     // int64 [B·T]: where each token goes in a cache layer seen as [B·S, …]
    int64_t cache_length = 0;  // how many slots are looked at
  };

  Decoder(const ModelConfig& config, const at::Device& device, at::ScalarType dtype);
  Layer MakeLayer(const at::TensorOptions& options) const;
  void CollectParameters();
  Norm MakeNorm(int64_t size, const at::TensorOptions& options) const;
  void AddRotation(const TokenBatch& batch, const KvCache* cache, Pass* pass) const;
  std::shared_ptr<const Pass> Prepare(const TokenBatch& batch, const KvCache* cache) const;
  at::Tensor Embed(const TokenBatch& batch) const;
  at::Tensor Mix(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values, const Pass& pass,
                 int64_t window) const;
  at::Tensor AttentionCore(const Layer& layer, const at::Tensor& fused, const Pass& pass, int64_t window,
                           KvCache::Layer* cache) const;
  at::Tensor Attention(const Layer& layer, const at::Tensor& x_BTC, const std::shared_ptr<const Pass>& pass,
                       int64_t window, KvCache::Layer* cache) const;
  at::Tensor Mlp(const Layer& layer, const at::Tensor& x_BTC) const;
  at::Tensor RunLayer(const Layer& layer, const at::Tensor& x_BTC, const std::shared_ptr<const Pass>& pass,
                      int64_t window, KvCache::Layer* cache) const;
  static std::vector<at::Tensor> ParametersOf(const Layer& layer);
  absl::StatusOr<std::vector<LinearPart>> PartsToAdapt(const LoraConfig& config) const;
  std::vector<const Adapter*> Adapters() const;

  ModelConfig config_;
  at::ScalarType compute_type_;
  Recomputed recomputed_ = Recomputed::kNothing;
  int64_t rope_length_ = 0;
  int64_t used_tokens_;   // V
  at::Tensor embedding_;  // [vocab_size, E]
  at::Tensor positions_;  // [max positions + offset, C], of learned positions
  Linear project_in_;     // [C, E], where E is not C
  std::vector<Layer> layers_;
  Norm norm_;
  Linear project_out_;  // [E, C], where E is not C
  at::Tensor head_;     // [vocab_size or 1, E], or undefined where it is tied to the embedding
  std::optional<LoraConfig> lora_;
  std::vector<at::Tensor> parameters_;

  friend class WeightNames;
};

}  // namespace tdock::model
