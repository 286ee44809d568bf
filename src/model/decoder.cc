#include "model/decoder.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "absl/strings/str_cat.h"

namespace tdock::model {
namespace {

// The halves of the head dimension are the two coordinates that are rotated, as Hugging Face stores weights.
at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto halves = x.chunk(2, -1);
  return x * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
}

}  // namespace

KvCache::KvCache(const ModelConfig& config, int64_t rows, int64_t slots, const at::TensorOptions& options)
    : rows_(rows), slots_(slots), length_(slots) {
  const std::vector<int64_t> shape = {rows, slots, config.num_kv_heads, config.head_dim};
  // Zeros, not whatever is in memory: a slot that nobody may see still takes part in the product, with weight zero.
  for (int64_t i = 0; i < config.num_layers; ++i)
    layers_.push_back({at::zeros(shape, options), at::zeros(shape, options)});
}

void KvCache::SetLength(int64_t length) {
  TORCH_CHECK(length >= 0 && length <= slots_, "a length of ", length, " does not fit a cache of ", slots_, " slots");
  length_ = length;
}

void KvCache::SelectRows(const at::Tensor& index) {
  for (Layer& layer : layers_) {
    layer.keys = layer.keys.index_select(0, index);
    layer.values = layer.values.index_select(0, index);
  }
  rows_ = index.numel();
}

Decoder::Decoder(const ModelConfig& config, const at::Device& device)
    : config_(config), used_tokens_(config.vocab_size), layers_(config.num_layers) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const int64_t hidden = config.hidden_size;
  const int64_t query_size = config.num_heads * config.head_dim;
  const int64_t qkv_size = query_size + 2 * config.num_kv_heads * config.head_dim;
  embedding_ = at::empty({config.vocab_size, hidden}, options);
  for (Layer& layer : layers_) {
    layer.attention_norm = at::empty({hidden}, options);
    layer.qkv = at::empty({qkv_size, hidden}, options);
    if (config.qkv_bias) layer.qkv_bias = at::empty({qkv_size}, options);
    layer.output = at::empty({hidden, query_size}, options);
    layer.mlp_norm = at::empty({hidden}, options);
    layer.gate_up = at::empty({2 * config.intermediate_size, hidden}, options);
    layer.down = at::empty({hidden, config.intermediate_size}, options);
  }
  norm_ = at::empty({hidden}, options);
  if (!config.tied_head) head_ = at::empty({config.vocab_size, hidden}, options);
  CollectParameters();
}

Decoder Decoder::Uninitialised(const ModelConfig& config, const at::Device& device) {
  Decoder decoder(config, device);
  decoder.MakeRotaryTables();
  return decoder;
}

std::vector<std::pair<std::string, std::vector<int64_t>>> Decoder::WeightShapes(const ModelConfig& config) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  // Tensors of this device have shapes and no memory.
  for (const auto& [name, weight] : Decoder(config, at::kMeta).NamedWeights()) {
    shapes.emplace_back(name, weight.sizes().vec());
  }
  return shapes;
}

Decoder Decoder::Random(const ModelConfig& config, uint64_t seed, const at::Device& device) {
  at::NoGradGuard no_grad;
  Decoder decoder = Uninitialised(config, device);
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto normal = [&](const at::Tensor& weight, double deviation) {
    weight.copy_(at::normal(0.0, deviation, weight.sizes(), generator, at::kFloat));
  };
  const auto linear = [&](const at::Tensor& weight) {
    normal(weight, 1.0 / std::sqrt(static_cast<double>(weight.size(1))));
  };
  const auto residual = [&](const at::Tensor& weight) {
    normal(weight, 1.0 / std::sqrt(static_cast<double>(weight.size(1)) * 2.0 * static_cast<double>(config.num_layers)));
  };
  normal(decoder.embedding_, 0.02);
  for (const Layer& layer : decoder.layers_) {
    layer.attention_norm.fill_(1);
    linear(layer.qkv);
    if (layer.qkv_bias.defined()) layer.qkv_bias.zero_();
    residual(layer.output);
    layer.mlp_norm.fill_(1);
    linear(layer.gate_up);
    residual(layer.down);
  }
  decoder.norm_.fill_(1);
  if (decoder.head_.defined()) linear(decoder.head_);
  return decoder;
}

Decoder Decoder::Clone() const {
  at::NoGradGuard no_grad;
  Decoder copy(config_, device());
  for (size_t i = 0; i < parameters_.size(); ++i) copy.parameters_[i].copy_(parameters_[i]);
  copy.used_tokens_ = used_tokens_;
  copy.rotary_cos_ = rotary_cos_;
  copy.rotary_sin_ = rotary_sin_;
  return copy;
}

void Decoder::CollectParameters() {
  parameters_ = {embedding_};
  for (const Layer& layer : layers_) {
    parameters_.insert(parameters_.end(), {layer.attention_norm, layer.qkv});
    if (layer.qkv_bias.defined()) parameters_.push_back(layer.qkv_bias);
    parameters_.insert(parameters_.end(), {layer.output, layer.mlp_norm, layer.gate_up, layer.down});
  }
  parameters_.push_back(norm_);
  if (head_.defined()) parameters_.push_back(head_);
}

void Decoder::MakeRotaryTables() {
  // In float64: float32 powers are off by enough to show at far positions.
  const auto real = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor pairs = at::arange(0, config_.head_dim, 2, real) / static_cast<double>(config_.head_dim);
  const at::Tensor frequencies = at::pow(config_.rope_theta, -pairs);
  const at::Tensor angles = at::outer(at::arange(config_.max_positions, real), frequencies);
  const auto for_both_halves = [&](const at::Tensor& x) {
    const at::Tensor half = x.to(device(), at::kFloat);
    return at::cat({half, half}, -1);
  };
  rotary_cos_ = for_both_halves(angles.cos());
  rotary_sin_ = for_both_halves(angles.sin());
}

int64_t Decoder::parameter_count() const {
  int64_t count = 0;
  for (const at::Tensor& parameter : parameters_) count += parameter.numel();
  return count;
}

void Decoder::SetTrainable(bool trainable) {
  for (at::Tensor& parameter : parameters_) parameter.set_requires_grad(trainable);
}

std::vector<std::pair<std::string, at::Tensor>> Decoder::NamedWeights() const {
  at::NoGradGuard no_grad;
  const int64_t query = config_.num_heads * config_.head_dim;
  const int64_t kv = config_.num_kv_heads * config_.head_dim;
  const int64_t wide = config_.intermediate_size;
  std::vector<std::pair<std::string, at::Tensor>> named = {{"model.embed_tokens.weight", embedding_}};
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    const auto add = [&](absl::string_view name, const at::Tensor& t) {
      named.emplace_back(absl::StrCat(prefix, name), t);
    };
    add("input_layernorm.weight", layer.attention_norm);
    add("self_attn.q_proj.weight", layer.qkv.narrow(0, 0, query));
    add("self_attn.k_proj.weight", layer.qkv.narrow(0, query, kv));
    add("self_attn.v_proj.weight", layer.qkv.narrow(0, query + kv, kv));
    if (layer.qkv_bias.defined()) {
      add("self_attn.q_proj.bias", layer.qkv_bias.narrow(0, 0, query));
      add("self_attn.k_proj.bias", layer.qkv_bias.narrow(0, query, kv));
      add("self_attn.v_proj.bias", layer.qkv_bias.narrow(0, query + kv, kv));
    }
    add("self_attn.o_proj.weight", layer.output);
    add("post_attention_layernorm.weight", layer.mlp_norm);
    add("mlp.gate_proj.weight", layer.gate_up.narrow(0, 0, wide));
    add("mlp.up_proj.weight", layer.gate_up.narrow(0, wide, wide));
    add("mlp.down_proj.weight", layer.down);
  }
  named.emplace_back("model.norm.weight", norm_);
  if (head_.defined()) named.emplace_back("lm_head.weight", head_);
  return named;
}

Decoder::Pass Decoder::Prepare(const TokenBatch& batch, const KvCache* cache) const {
  Pass pass;
  // Elsewhere the check would make the host wait for the device at every step.
  if (cache != nullptr && batch.positions.is_cpu() && batch.positions.numel() > 0) {
    const int64_t last = batch.positions.max().item<int64_t>();
    TORCH_CHECK(last < cache->length_, "position ", last, " is not below the cache's length of ", cache->length_);
  }
  const at::Tensor flat_positions = batch.positions.reshape({-1});
  const std::vector<int64_t> shape = {batch.positions.size(0), batch.positions.size(1), 1, config_.head_dim};
  pass.cos = rotary_cos_.index_select(0, flat_positions).view(shape);
  pass.sin = rotary_sin_.index_select(0, flat_positions).view(shape);
  if (cache == nullptr) {
    pass.visible = batch.visible;
    pass.causal = !batch.visible.defined();
    return pass;
  }
  const auto index = batch.positions.options();
  const at::Tensor first_slot_B1 = at::arange(cache->rows(), index).unsqueeze(1) * cache->slots();
  pass.cache_length = cache->length_;
  pass.cache_rows = (first_slot_B1 + batch.positions).reshape({-1});
  pass.visible = (at::arange(cache->length_, index) <= batch.positions.unsqueeze(-1)).unsqueeze(1);
  return pass;
}

at::Tensor Decoder::Attention(const Layer& layer, const at::Tensor& normed_BTC, const Pass& pass,
                              KvCache::Layer* cache) const {
  const int64_t rows = normed_BTC.size(0);
  const int64_t tokens = normed_BTC.size(1);
  const int64_t heads = config_.num_heads;
  const int64_t kv_heads = config_.num_kv_heads;
  const at::Tensor qkv =
      at::linear(normed_BTC, layer.qkv, layer.qkv_bias).view({rows, tokens, heads + 2 * kv_heads, config_.head_dim});
  // Queries and keys are rotated together.
  const at::Tensor rotated = Rotate(qkv.narrow(2, 0, heads + kv_heads), pass.cos, pass.sin);
  const at::Tensor queries = rotated.narrow(2, 0, heads);
  at::Tensor keys = rotated.narrow(2, heads, kv_heads);
  at::Tensor values = qkv.narrow(2, heads + kv_heads, kv_heads);
  if (cache != nullptr) {
    const auto store = [&](at::Tensor& slots, const at::Tensor& fresh) {
      const int64_t width = kv_heads * config_.head_dim;
      slots.view({-1, width}).index_copy_(0, pass.cache_rows, fresh.reshape({-1, width}));
      return slots.narrow(1, 0, pass.cache_length);
    };
    keys = store(cache->keys, keys);
    values = store(cache->values, values);
  }
  const std::optional<at::Tensor> mask = pass.visible.defined() ? std::optional(pass.visible) : std::nullopt;
  const at::Tensor mixed =
      at::scaled_dot_product_attention(queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), mask,
                                       /*dropout_p=*/0.0, pass.causal, /*scale=*/std::nullopt,
                                       /*enable_gqa=*/heads != kv_heads);
  return at::linear(mixed.transpose(1, 2).reshape({rows, tokens, heads * config_.head_dim}), layer.output);
}

at::Tensor Decoder::Mlp(const Layer& layer, const at::Tensor& normed_BTC) const {
  const auto gate_and_up = at::linear(normed_BTC, layer.gate_up).chunk(2, -1);
  return at::linear(at::silu(gate_and_up[0]) * gate_and_up[1], layer.down);
}

at::Tensor Decoder::Hidden(const TokenBatch& batch, KvCache* cache) const {
  // Gradients cannot flow through a cache: later tokens would see values without a history.
  at::AutoGradMode with_gradients(cache == nullptr && at::GradMode::is_enabled());
  const Pass pass = Prepare(batch, cache);
  const auto norm = [&](const at::Tensor& x, const at::Tensor& weight) {
    return at::rms_norm(x, {config_.hidden_size}, weight, config_.rms_norm_eps);
  };
  at::Tensor x_BTC = at::embedding(embedding_, batch.tokens);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    x_BTC = x_BTC + Attention(layer, norm(x_BTC, layer.attention_norm), pass, cache ? &cache->layers_[i] : nullptr);
    x_BTC = x_BTC + Mlp(layer, norm(x_BTC, layer.mlp_norm));
  }
  return norm(x_BTC, norm_);
}

void Decoder::LimitVocabulary(int64_t tokens) {
  TORCH_CHECK(tokens >= 1 && tokens <= config_.vocab_size, tokens, " tokens of a vocabulary of ", config_.vocab_size);
  used_tokens_ = tokens;
}

at::Tensor Decoder::Logits(const at::Tensor& hidden) const {
  const at::Tensor& head = head_.defined() ? head_ : embedding_;
  return at::linear(hidden, used_tokens_ < head.size(0) ? head.narrow(0, 0, used_tokens_) : head);
}

}  // namespace tdock::model
