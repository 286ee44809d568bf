// Decoders of language models, assembled from the parts in layers.h according to ModelConfig.
//
// Shapes: B rows, T tokens of a row, C hidden size, E embedding size, V vocabulary, as far as it
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
#include "model/decoder/pass_watch.h"
#include "model/decoder/token_batch.h"
#include "model/files/adapter_config.h"
#include "model/files/config.h"

namespace tdock::model {

// What of each layer is recomputed for the gradients, instead of being kept.
enum class Recomputed {
  kNothing,
  kAttentionCore,  // the products of queries, keys and values
  kMlp,
  kAttentionCoreAndMlp,
  kLayers,
};

// What a parameter belongs to.
enum class ParameterKind {
  kBody,
  kAdapter,
  kHead,  // of values, or of tokens where it is not the embedding
};

// Const methods are thread-safe. Methods throw c10::Error if libtorch does (shapes, memory). A decoder must stay alive
// and unmoved until the gradients of its results are computed.
class Decoder {
 public:
  // Weights drawn from `seed`: linear layers N(0, 1/fan_in), with the projections back into the residual stream divided
  // by sqrt(2·layers) (Radford et al. 2019, GPT-2, §2.3), the embeddings N(0, 0.02²), a value head N(0, 1/(E + 1))
  // (Stiennon et al. 2020, arXiv:2009.01325), norms one, biases zero. The same on every device. `config` must be valid.
  static Decoder Random(const ModelConfig& config, uint64_t seed, const at::Device& device,
                        at::ScalarType dtype = at::kFloat);

  // A decoder with uninitialised weights: write all of NamedWeights() before it is used.
  static Decoder Uninitialised(const ModelConfig& config, const at::Device& device, at::ScalarType dtype = at::kFloat);

  // Draws the weights of a value head as Random() does.
  static void InitialiseValueHead(uint64_t seed, at::Tensor& head);

  // Names and shapes of the weights that a decoder would have, as NamedWeights() lists them, without allocating them.
  static NamedShapes WeightShapes(const ModelConfig& config);

  // A decoder with copies of the weights and adapters, which takes no gradients.
  Decoder Clone() const;
  // The same, but with adapters it shares the weights that are not trained beside them with this one.
  Decoder Snapshot() const;

  // Low-rank adapters of linear layers (Hu et al. 2021, arXiv:2106.09685), in float32 (for float64 weights in float64).
  // Initially they have no effect. From then on SetTrainable() makes only them, the modules of LoraConfig::saved and a
  // value head trainable. InvalidArgument names targets, layers and modules that the decoder does not have;
  // FailedPrecondition if it has adapters.
  absl::Status AddAdapters(const LoraConfig& config, uint64_t seed);
  // Names and shapes of the factors that AddAdapters() would make, as NamedAdapters() lists them, without allocating
  // them. The same errors.
  absl::StatusOr<NamedShapes> AdapterShapes(const LoraConfig& config) const;
  void RemoveAdapters();
  const std::optional<LoraConfig>& lora() const { return lora_; }
  // InvalidArgument names modules of LoraConfig::saved that the decoder does not have, or that cannot be trained whole
  // beside adapters: linear layers of the layers, and a head that is the embedding.
  absl::Status CheckSaved(const LoraConfig& config) const;
  // The weights of its modules, as NamedWeights() has them.
  NamedTensors SavedWeights(const LoraConfig& config) const;
  // Their factors under the names of the PEFT layout, such as "model.layers.0.self_attn.q_proj.lora_A.weight".
  NamedTensors NamedAdapters() const;
  // As Clone(), with the adapters merged into the weights: weight + scale · b · a, summed in float32 at least and
  // rounded once. This decoder stays unchanged, bit for bit.
  Decoder Merged() const;

  const ModelConfig& config() const { return config_; }
  at::Device device() const { return embedding_.device(); }
  at::ScalarType dtype() const { return embedding_.scalar_type(); }

  // The dtype of activations, and of the weights in products with them. Default: that of the weights; bfloat16 with
  // float32 weights is mixed precision. Norms compute in float32.
  void SetComputeType(at::ScalarType dtype);
  at::ScalarType compute_type() const { return compute_type_; }

  // In batch-invariant mode the hidden states, logits and values of a token are the same, bit for bit, whatever else is
  // in the batch, however it is packed and padded, and on any number of threads: every sum has an order of its own. It
  // is for the CPU with activations in float32 or bfloat16, where it is on by default; elsewhere it never is.
  // Frequencies of dynamic rope scaling depend on the batch unless they are fixed (FixRopeLength).
  void SetBatchInvariant(bool batch_invariant);
  bool batch_invariant() const { return arithmetic_ == Arithmetic::kBatchInvariant && HasKernels(); }

  // Whether PackWeights() is for this decoder: on the CPU with activations in float32 or bfloat16.
  bool HasKernels() const;
  // For many passes without gradients: lays out copies of the weights as products read them, in the compute type, or in
  // int8 by groups (adapters are not), to which inputs are then rounded, too, and turns batch-invariant mode on. These
  // passes then use the copies, with the same results but for int8, and do not see later changes of the weights. What
  // changes how the decoder computes, or its adapters, ends that. Throws c10::Error unless HasKernels(), and for
  // tensors without data.
  void PackWeights(bool int8 = false);
  bool is_packed() const { return packed_head_ != nullptr; }  // not of a decoder with a value head
  // How many bytes PackWeights() takes, without adapters.
  static int64_t PackedBytes(const ModelConfig& config, at::ScalarType compute_type, bool int8 = false);

  void SetRecomputed(Recomputed what) { recomputed_ = what; }
  Recomputed recomputed() const { return recomputed_; }

  // In passes with a dropout_seed, the embeddings and what attention and mlp add to the residual stream are dropped
  // with this probability, 0 ≤ p < 1 (Vaswani et al. 2017, arXiv:1706.03762, §5.4). Default: 0.
  void SetDropout(double probability) { dropout_ = probability; }
  double dropout() const { return dropout_; }
  // Whether a dropout_seed changes what passes compute.
  bool drops() const { return dropout_ > 0 || (lora_ && lora_->dropout > 0); }

  // With dynamic rope scaling, the frequencies depend on the longest sequence of a pass (TokenBatch::rope_length). From
  // now on they are those of sequences of `length` tokens, so that all passes use the same.
  void FixRopeLength(int64_t length) { rope_length_ = length; }
  int64_t rope_length() const { return rope_length_; }  // 0: it is not fixed

  // The hidden states after the last norm, [B, T, E]. With a cache, B is 1, the tokens are those of the parts of the
  // pass, one after another, and see what the cache has of their sequences; no gradients then.
  at::Tensor Hidden(const TokenBatch& batch, CachePass* cache = nullptr) const;

  // From now on Logits() returns only those of the first `tokens` ids, as if the vocabulary ended there: rows after the
  // tokenizer's last token, with which checkpoints pad the vocabulary, are then never sampled and have no probability.
  // 1 ≤ `tokens` ≤ vocab_size. Checkpoints are saved with all rows.
  void LimitVocabulary(int64_t tokens);
  int64_t used_tokens() const { return used_tokens_; }  // the V of Logits()

  // Hidden states [..., E] to logits [..., V], float32 at least.
  at::Tensor Logits(const at::Tensor& hidden) const;
  // The same as they were computed, in compute_type().
  at::Tensor ComputedLogits(const at::Tensor& hidden) const;
  // Hidden states [..., E] to values [...], of a decoder with a value head; float32 at least.
  at::Tensor Values(const at::Tensor& hidden) const;

  // The parameters: fused projections are one tensor. Always in the same order; adapters follow the weights that they
  // change.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  int64_t parameter_count() const;
  // All parameters, or, if there are adapters, the adapters and the modules saved with them.
  void SetTrainable(bool trainable);
  // Those of the parameters that are trained, all or of one kind, in their order.
  std::vector<at::Tensor> trainable() const;
  std::vector<at::Tensor> trainable(ParameterKind kind) const;

  // Layers, and one more: see PassWatch.
  size_t units() const { return layers_.size() + 1; }
  // All parameters of a unit, and those of them that are trained, in the order of parameters().
  std::vector<at::Tensor> ParametersOf(size_t unit) const;
  std::vector<at::Tensor> TrainedOf(size_t unit) const;
  // A decoder for one pass, with the same weights: it tells `watch` how far the pass has got, and gives it the
  // gradients, which the parameters do not get. This decoder and `watch` must outlive it, and it the gradients.
  Decoder Watched(PassWatch& watch) const;

  // Every weight under its Hugging Face name: views that share memory with the parameters, in the order of the layers.
  // A tied head is not listed, and adapters are not in it.
  NamedTensors NamedWeights() const;

 private:
  struct Layer {
    size_t number = 0;
    Norm attention_norm;
    Linear qkv;           // [(heads + 2·kv heads)·head dim, C]
    Norm q_norm, k_norm;  // of a head, or without weights
    Linear output;        // [C, heads·head dim]
    Norm mlp_norm;
    Linear up;  // [intermediate, C]; of a gated mlp [2·intermediate, C], the gate first
    Linear down;
  };
  static constexpr Linear Layer::*kLinears[] = {&Layer::qkv, &Layer::output, &Layer::up, &Layer::down};
  // A linear layer of the Hugging Face layout: some rows of one of ours.
  struct LinearPart {
    std::string path;  // "model.layers.0.self_attn.q_proj"
    size_t layer;
    Linear Layer::*linear;
    int64_t begin, rows;
  };
  // What all layers share in one pass.
  struct Pass {
    at::Tensor cos, sin;  // [B, T, 1, head dim]
    // By window, for each part of a row, or for the rows as a whole if they have none: which tokens are visible, as in
    // TokenBatch; undefined: all preceding. Empty with a cache.
    std::map<int64_t, std::vector<at::Tensor>> visible;
    std::vector<int64_t> lengths;
    std::optional<uint64_t> dropout_seed;
    std::vector<Layer> watched;  // layers with the weights that a PassWatch is told of
  };

  Decoder(const ModelConfig& config, const at::Device& device, at::ScalarType dtype);
  Layer MakeLayer(const at::TensorOptions& options) const;
  void CollectParameters();
  Norm MakeNorm(int64_t size, const at::TensorOptions& options) const;
  void AddRotation(const TokenBatch& batch, Pass* pass) const;
  std::shared_ptr<Pass> Prepare(const TokenBatch& batch, bool cached) const;
  at::Tensor Embed(const TokenBatch& batch) const;
  at::Tensor Mix(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values, const Pass& pass,
                 int64_t window) const;
  at::Tensor AttentionCore(const Layer& layer, const at::Tensor& fused, const Pass& pass, int64_t window,
                           CachePass* cache) const;
  void Unpack();
  Linear TokenHead() const;  // for the tokens that are used
  // As Mix(), in the loops of src/kernels, of [B, T, heads, head dim]; gives the same.
  at::Tensor MixInvariantly(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                            const Pass& pass, int64_t window) const;
  at::Tensor Attention(const Layer& layer, const at::Tensor& x_BTC, const std::shared_ptr<const Pass>& pass,
                       int64_t window, CachePass* cache) const;
  at::Tensor Mlp(const Layer& layer, const at::Tensor& x_BTC, const Pass& pass) const;
  // The dropout of the residual stream at `place`: 0 are the embeddings, each layer has two.
  Dropout DropoutAt(size_t place, const Pass& pass) const;
  Dropout AdapterDropout(const Layer& layer, Linear Layer::*linear, const Pass& pass) const;
  at::Tensor RunLayer(const Layer& layer, const at::Tensor& x_BTC, const std::shared_ptr<const Pass>& pass,
                      int64_t window, CachePass* cache) const;
  static std::vector<at::Tensor> ParametersOf(const Layer& layer);
  static std::vector<at::Tensor*> WeightsOf(Layer& layer);  // which may be undefined
  std::vector<at::Tensor*> WeightsAroundLayers();           // likewise
  void Watch(std::vector<at::Tensor*> weights, size_t unit) const;
  absl::StatusOr<std::vector<LinearPart>> PartsToAdapt(const LoraConfig& config) const;
  std::vector<const Adapter*> Adapters() const;
  NamedTensors WholeWeights() const;

  ModelConfig config_;
  at::ScalarType compute_type_;
  Arithmetic arithmetic_ = Arithmetic::kBatchInvariant;
  Recomputed recomputed_ = Recomputed::kNothing;
  double dropout_ = 0;
  int64_t rope_length_ = 0;
  int64_t used_tokens_;   // V
  at::Tensor embedding_;  // [vocab_size, E]
  at::Tensor positions_;  // [max positions + offset, C], of learned positions
  Linear project_in_;     // [C, E], where E is not C
  std::vector<Layer> layers_;
  Norm norm_;
  Linear project_out_;  // [E, C], where E is not C
  at::Tensor head_;     // [vocab_size or 1, E], or undefined where it is tied to the embedding
  std::shared_ptr<const PackedLinear> packed_head_;
  std::optional<LoraConfig> lora_;
  std::vector<at::Tensor> parameters_;
  PassWatch* watch_ = nullptr;  // of the pass that this decoder is for

  friend class WeightNames;
};

}  // namespace tdock::model
