#include "model/decoder/decoder.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "core/base/rng.h"
#include "model/decoder/device.h"
#include "model/decoder/recompute.h"
#include "model/decoder/watched_pass.h"
#include "model/decoder/weight_names.h"

namespace tdock::model {
namespace {

// OPT's table of positions has two rows in front, which mean nothing any more.
int64_t PositionOffset(Architecture architecture) { return architecture == Architecture::kOpt ? 2 : 0; }

std::vector<at::Tensor> Defined(std::vector<at::Tensor> tensors) {
  std::erase_if(tensors, [](const at::Tensor& tensor) { return !tensor.defined(); });
  return tensors;
}

std::vector<at::Tensor> ParametersOf(std::initializer_list<const Linear*> linears) {
  std::vector<at::Tensor> parameters;
  for (const Linear* linear : linears) {
    parameters.insert(parameters.end(), {linear->weight, linear->bias});
    for (const Adapter& adapter : linear->adapters) parameters.insert(parameters.end(), {adapter.a, adapter.b});
  }
  return Defined(parameters);
}

// The cosines or sines, by `function`, of positions · per_pair, multiplied by `scale`: [B, T, 1, D], for both halves of
// D. On the CPU by the standard library: libtorch computes the last few of a tensor otherwise than the rest.
template <class T>
at::Tensor OfAngles(double (*function)(double), const at::Tensor& positions_BT, const std::vector<double>& per_pair,
                    double scale) {
  const at::Tensor positions = positions_BT.contiguous();
  const auto half = static_cast<int64_t>(per_pair.size());
  at::Tensor found = at::empty({positions.size(0), positions.size(1), 1, 2 * half}, c10::CppTypeToScalarType<T>::value);
  T* to = found.mutable_data_ptr<T>();
  for (int64_t i = 0; i < positions.numel(); ++i, to += 2 * half) {
    const auto position = static_cast<double>(positions.const_data_ptr<int64_t>()[i]);
    for (int64_t pair = 0; pair < half; ++pair) {
      // In float64: products of far positions in float32 are off by enough to show.
      to[pair] = static_cast<T>(function(position * per_pair[static_cast<size_t>(pair)]) * scale);
    }
    std::copy_n(to, half, to + half);
  }
  return found;
}

// true where a token (row) is less than `window` positions behind another (column). positions: [B, T], [B or 1, S].
at::Tensor Within(int64_t window, const at::Tensor& of, const at::Tensor& others) {
  return (of.unsqueeze(-1) - others.unsqueeze(-2) < window).unsqueeze(1);
}

}  // namespace

Norm Decoder::MakeNorm(int64_t size, const at::TensorOptions& options) const {
  Norm norm{config_.norm, config_.norm_eps, {}, {}};
  if (config_.norm_weights) {
    norm.weight = at::empty({size}, options);
    if (config_.norm == NormKind::kLayer) norm.bias = at::empty({size}, options);
  }
  return norm;
}

Decoder::Layer Decoder::MakeLayer(const at::TensorOptions& options) const {
  const ModelConfig& c = config_;
  const auto linear = [&](int64_t out, int64_t in, bool bias) {
    return Linear{at::empty({out, in}, options), bias ? at::empty({out}, options) : at::Tensor()};
  };
  const int64_t query = c.num_heads * c.head_dim;
  Layer layer;
  layer.attention_norm = MakeNorm(c.hidden_size, options);
  layer.qkv = linear(query + 2 * c.num_kv_heads * c.head_dim, c.hidden_size, c.qkv_bias);
  if (c.qk_norm) {
    layer.q_norm = MakeNorm(c.head_dim, options);
    layer.k_norm = MakeNorm(c.head_dim, options);
  }
  layer.output = linear(c.hidden_size, query, c.output_bias);
  layer.mlp_norm = MakeNorm(c.hidden_size, options);
  layer.up = linear((c.gated_mlp ? 2 : 1) * c.intermediate_size, c.hidden_size, c.mlp_bias);
  layer.down = linear(c.hidden_size, c.intermediate_size, c.mlp_bias);
  return layer;
}

Decoder::Decoder(const ModelConfig& config, const at::Device& device, at::ScalarType dtype)
    : config_(config), compute_type_(dtype), used_tokens_(config.vocab_size) {
  PrepareMath();
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  const int64_t hidden = config.hidden_size;
  const int64_t embedding = config.embedding();
  embedding_ = at::empty({config.vocab_size, embedding}, options);
  if (config.positions == Positions::kLearned) {
    positions_ = at::empty({config.max_positions + PositionOffset(config.architecture), hidden}, options);
  }
  if (embedding != hidden) {
    project_in_.weight = at::empty({hidden, embedding}, options);
    project_out_.weight = at::empty({embedding, hidden}, options);
  }
  for (int64_t i = 0; i < config.num_layers; ++i) {
    layers_.push_back(MakeLayer(options));
    layers_.back().number = static_cast<size_t>(i);
  }
  if (config.final_norm) norm_ = MakeNorm(hidden, options);
  if (config.has_own_head()) {
    head_ = at::empty({config.head == Head::kValue ? 1 : config.vocab_size, embedding}, options);
  }
  CollectParameters();
}

Decoder Decoder::Uninitialised(const ModelConfig& config, const at::Device& device, at::ScalarType dtype) {
  return Decoder(config, device, dtype);
}

NamedShapes Decoder::WeightShapes(const ModelConfig& config) {
  NamedShapes shapes;
  // Tensors of this device have shapes and no memory.
  for (const auto& [name, weight] : Decoder(config, at::kMeta, at::kFloat).NamedWeights()) {
    shapes.emplace_back(name, weight.sizes().vec());
  }
  return shapes;
}

void Decoder::InitialiseValueHead(uint64_t seed, at::Tensor& head) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const double deviation = 1.0 / std::sqrt(static_cast<double>(head.size(1) + 1));
  head.copy_(at::normal(0.0, deviation, head.sizes(), generator, at::kFloat));
}

Decoder Decoder::Random(const ModelConfig& config, uint64_t seed, const at::Device& device, at::ScalarType dtype) {
  at::NoGradGuard no_grad;
  Decoder decoder(config, device, dtype);
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto normal = [&](const at::Tensor& weight, double deviation) {
    weight.copy_(at::normal(0.0, deviation, weight.sizes(), generator, at::kFloat));
  };
  const auto linear = [&](const Linear& part, double divisor = 1.0) {
    normal(part.weight, 1.0 / std::sqrt(static_cast<double>(part.weight.size(1)) * divisor));
    if (part.bias.defined()) part.bias.zero_();
  };
  const auto norm = [](const Norm& part) {
    if (part.weight.defined()) part.weight.fill_(1);
    if (part.bias.defined()) part.bias.zero_();
  };
  const double residuals = 2.0 * static_cast<double>(config.num_layers);
  normal(decoder.embedding_, 0.02);
  if (decoder.positions_.defined()) normal(decoder.positions_, 0.02);
  if (decoder.project_in_.weight.defined()) linear(decoder.project_in_);
  for (const Layer& layer : decoder.layers_) {
    norm(layer.attention_norm);
    linear(layer.qkv);
    norm(layer.q_norm);
    norm(layer.k_norm);
    linear(layer.output, residuals);
    norm(layer.mlp_norm);
    linear(layer.up);
    linear(layer.down, residuals);
  }
  norm(decoder.norm_);
  if (decoder.project_out_.weight.defined()) linear(decoder.project_out_);
  if (config.head == Head::kValue) {
    InitialiseValueHead(seed, decoder.head_);
  } else if (decoder.head_.defined()) {
    linear({decoder.head_, {}});
  }
  return decoder;
}

Decoder Decoder::Clone() const {
  at::NoGradGuard no_grad;
  Decoder copy(config_, device(), dtype());
  if (lora_) {
    copy.lora_ = lora_;
    for (size_t i = 0; i < layers_.size(); ++i) {
      for (Linear Layer::*const linear : kLinears) {
        for (Adapter adapter : (layers_[i].*linear).adapters) {
          adapter.a = at::empty_like(adapter.a);
          adapter.b = at::empty_like(adapter.b);
          (copy.layers_[i].*linear).adapters.push_back(std::move(adapter));
        }
      }
    }
    copy.CollectParameters();
  }
  for (size_t i = 0; i < parameters_.size(); ++i) copy.parameters_[i].copy_(parameters_[i]);
  copy.used_tokens_ = used_tokens_;
  copy.compute_type_ = compute_type_;
  copy.recomputed_ = recomputed_;
  copy.dropout_ = dropout_;
  copy.rope_length_ = rope_length_;
  copy.SetBatchInvariant(arithmetic_ == Arithmetic::kBatchInvariant);
  return copy;
}

Decoder Decoder::Snapshot() const {
  if (!lora_) return Clone();
  Decoder copy = *this;
  copy.Unpack();
  const auto replace = [](at::Tensor& tensor) { tensor = tensor.detach().clone(); };
  const NamedTensors saved = SavedWeights(*lora_);
  std::vector<at::Tensor*> weights = copy.WeightsAroundLayers();
  for (Layer& layer : copy.layers_) {
    for (Linear Layer::*const linear : kLinears) {
      for (Adapter& adapter : (layer.*linear).adapters) {
        replace(adapter.a);
        replace(adapter.b);
      }
    }
    const std::vector<at::Tensor*> of_layer = WeightsOf(layer);
    weights.insert(weights.end(), of_layer.begin(), of_layer.end());
  }
  for (at::Tensor* const weight : weights) {
    const auto is_it = [&](const auto& named) { return named.second.is_same(*weight); };
    if (std::any_of(saved.begin(), saved.end(), is_it)) replace(*weight);
  }
  copy.CollectParameters();
  return copy;
}

std::vector<at::Tensor> Decoder::ParametersOf(const Layer& layer) {
  std::vector<at::Tensor> parameters = model::ParametersOf({&layer.qkv, &layer.output, &layer.up, &layer.down});
  for (const Norm* norm : {&layer.attention_norm, &layer.q_norm, &layer.k_norm, &layer.mlp_norm}) {
    parameters.insert(parameters.end(), {norm->weight, norm->bias});
  }
  return Defined(parameters);
}

void Decoder::CollectParameters() {
  std::vector<at::Tensor> all = {embedding_, positions_, project_in_.weight};
  for (const Layer& layer : layers_) {
    const std::vector<at::Tensor> parameters = ParametersOf(layer);
    all.insert(all.end(), parameters.begin(), parameters.end());
  }
  all.insert(all.end(), {norm_.weight, norm_.bias, project_out_.weight, head_});
  parameters_ = Defined(all);
}

int64_t Decoder::parameter_count() const {
  return std::accumulate(parameters_.begin(), parameters_.end(), int64_t{0},
                         [](int64_t count, const at::Tensor& parameter) { return count + parameter.numel(); });
}

void Decoder::SetTrainable(bool trainable) {
  for (at::Tensor& parameter : parameters_) parameter.set_requires_grad(trainable && !lora_);
  if (!lora_) return;
  for (const Adapter* adapter : Adapters()) {
    adapter->a.set_requires_grad(trainable);
    adapter->b.set_requires_grad(trainable);
  }
  for (const auto& [name, weight] : SavedWeights(*lora_)) weight.set_requires_grad(trainable);
}

std::vector<at::Tensor> Decoder::trainable() const {
  std::vector<at::Tensor> trained = parameters_;
  std::erase_if(trained, [](const at::Tensor& parameter) { return !parameter.requires_grad(); });
  return trained;
}

std::vector<at::Tensor> Decoder::trainable(ParameterKind kind) const {
  const std::vector<const Adapter*> adapters = Adapters();
  const auto kind_of = [&](const at::Tensor& parameter) {
    if (parameter.is_same(head_)) return ParameterKind::kHead;
    const bool adapts = std::any_of(adapters.begin(), adapters.end(), [&](const Adapter* adapter) {
      return parameter.is_same(adapter->a) || parameter.is_same(adapter->b);
    });
    return adapts ? ParameterKind::kAdapter : ParameterKind::kBody;
  };
  std::vector<at::Tensor> trained = trainable();
  std::erase_if(trained, [&](const at::Tensor& parameter) { return kind_of(parameter) != kind; });
  return trained;
}

std::vector<at::Tensor> Decoder::ParametersOf(size_t unit) const {
  if (unit < layers_.size()) return ParametersOf(layers_[unit]);
  return Defined({embedding_, positions_, project_in_.weight, norm_.weight, norm_.bias, project_out_.weight, head_});
}

std::vector<at::Tensor> Decoder::TrainedOf(size_t unit) const {
  std::vector<at::Tensor> trained = ParametersOf(unit);
  std::erase_if(trained, [](const at::Tensor& parameter) { return !parameter.requires_grad(); });
  return trained;
}

std::vector<at::Tensor*> Decoder::WeightsOf(Layer& layer) {
  std::vector<at::Tensor*> weights;
  for (Linear Layer::*const linear : kLinears) {
    weights.insert(weights.end(), {&(layer.*linear).weight, &(layer.*linear).bias});
    for (Adapter& adapter : (layer.*linear).adapters) weights.insert(weights.end(), {&adapter.a, &adapter.b});
  }
  for (Norm* const norm : {&layer.attention_norm, &layer.q_norm, &layer.k_norm, &layer.mlp_norm}) {
    weights.insert(weights.end(), {&norm->weight, &norm->bias});
  }
  return weights;
}

std::vector<at::Tensor*> Decoder::WeightsAroundLayers() {
  return {&embedding_, &positions_, &project_in_.weight, &norm_.weight, &norm_.bias, &project_out_.weight, &head_};
}

// Puts others in the place of those that are trained.
void Decoder::Watch(std::vector<at::Tensor*> weights, size_t unit) const {
  std::erase_if(weights, [](const at::Tensor* weight) { return !weight->defined() || !weight->requires_grad(); });
  std::vector<at::Tensor> trained;
  trained.reserve(weights.size());
  for (const at::Tensor* const weight : weights) trained.push_back(*weight);
  const std::vector<at::Tensor> watched = WatchedWeights(trained, unit, *watch_);
  for (size_t i = 0; i < weights.size(); ++i) *weights[i] = watched[i];
}

Decoder Decoder::Watched(PassWatch& watch) const {
  Decoder pass = *this;
  pass.watch_ = &watch;
  pass.Watch(pass.WeightsAroundLayers(), layers_.size());
  pass.CollectParameters();
  return pass;
}

NamedTensors Decoder::NamedWeights() const { return WeightNames(*this).All(); }

void Decoder::AddRotation(const TokenBatch& batch, Pass* pass) const {
  int64_t length = rope_length_ > 0 ? rope_length_ : batch.rope_length;
  if (length == 0 && config_.rope.type == RopeType::kDynamic && batch.positions.numel() > 0) {
    length = batch.positions.max().item<int64_t>() + 1;
  }
  const RopeFrequencies frequencies = FrequenciesOf(config_.rope, config_.head_dim, config_.max_positions, length);
  const bool is_double = compute_type_ == at::kDouble;
  if (batch.positions.is_cpu()) {
    const auto of_angles = is_double ? OfAngles<double> : OfAngles<float>;
    pass->cos = of_angles(std::cos, batch.positions, frequencies.per_pair, frequencies.scale);
    pass->sin = of_angles(std::sin, batch.positions, frequencies.per_pair, frequencies.scale);
    return;
  }
  const at::Tensor per_pair = at::tensor(frequencies.per_pair, at::kDouble).to(device());
  const at::Tensor angles = batch.positions.to(at::kDouble).unsqueeze(-1) * per_pair;
  const auto for_both_halves = [&](const at::Tensor& x) {
    const at::Tensor half = (x * frequencies.scale).to(is_double ? at::kDouble : at::kFloat);
    return at::cat({half, half}, -1).unsqueeze(2);
  };
  pass->cos = for_both_halves(angles.cos());
  pass->sin = for_both_halves(angles.sin());
}

std::shared_ptr<Decoder::Pass> Decoder::Prepare(const TokenBatch& batch, bool cached) const {
  const auto shared = std::make_shared<Pass>();
  Pass& pass = *shared;
  TORCH_CHECK(batch.lengths.empty() || (!cached && !batch.visible.defined() && batch.tokens.size(0) == 1),
              "concatenated sequences must be in one row, without a mask and without a cache");
  TORCH_CHECK(batch.visible_in_parts.empty() || batch.visible_in_parts.size() == batch.lengths.size(),
              batch.visible_in_parts.size(), " masks for ", batch.lengths.size(), " concatenated parts");
  // Elsewhere the check would make the host wait for the device at every step.
  if (batch.positions.is_cpu() && batch.positions.numel() > 0) {
    const int64_t last = batch.positions.max().item<int64_t>();
    TORCH_CHECK(last < config_.context_length() || config_.rope.type == RopeType::kDynamic, "position ", last,
                " is not below the model's maximum of ", config_.context_length());
  }
  TORCH_CHECK(!batch.dropout_seed || !cached, "what is generated with a cache is not dropped");
  pass.dropout_seed = batch.dropout_seed;
  if (config_.positions == Positions::kRotary) AddRotation(batch, &pass);
  if (cached) {
    TORCH_CHECK(batch.tokens.size(0) == 1, "with a cache, a pass has one row, not ", batch.tokens.size(0));
    return shared;
  }
  if (batch.lengths.empty()) {
    pass.visible[0] = {batch.visible};
  } else {
    pass.lengths = batch.lengths;
    pass.visible[0] = batch.visible_in_parts;
    pass.visible[0].resize(batch.lengths.size());
  }
  for (const int64_t window : config_.windows) {
    if (window == 0 || pass.visible.contains(window)) continue;
    std::vector<at::Tensor> visible = pass.visible[0];
    int64_t begin = 0;
    for (size_t i = 0; i < visible.size(); ++i) {
      const at::Tensor positions =
          pass.lengths.empty() ? batch.positions : batch.positions.narrow(1, begin, pass.lengths[i]);
      if (!pass.lengths.empty()) begin += pass.lengths[i];
      if (!visible[i].defined()) continue;
      visible[i] = visible[i].logical_and(Within(window, positions, positions));
    }
    pass.visible[window] = std::move(visible);
  }
  return shared;
}

at::Tensor Decoder::Mix(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values, const Pass& pass,
                        int64_t window) const {
  // On the CPU the backward pass of this operation is an order of magnitude slower in half precision than in float32,
  // which would cost mixed precision all that it gains elsewhere.
  const bool widen = queries.is_cpu() && c10::isReducedFloatingType(queries.scalar_type());
  const auto wide = [&](const at::Tensor& x) { return widen ? x.to(at::kFloat) : x; };
  const auto product = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& seen) {
    return at::scaled_dot_product_attention(wide(q), wide(k), wide(v),
                                            seen.defined() ? std::optional(seen) : std::nullopt,
                                            /*dropout_p=*/0.0, /*is_causal=*/!seen.defined(), /*scale=*/std::nullopt,
                                            /*enable_gqa=*/config_.num_heads != config_.num_kv_heads)
        .to(queries.scalar_type());
  };
  // A mask for a sequence that is longer than the window.
  const auto window_mask = [&](int64_t length) {
    if (window == 0 || length <= window) return at::Tensor();
    return at::ones({length, length}, queries.options().dtype(at::kBool)).tril().triu(1 - window);
  };
  const std::vector<at::Tensor>& visible = pass.visible.at(window);
  const auto mask = [&](size_t part, int64_t length) {
    return visible[part].defined() ? visible[part] : window_mask(length);
  };
  if (pass.lengths.empty()) return product(queries, keys, values, mask(0, queries.size(2)));
  std::vector<at::Tensor> mixed;
  int64_t begin = 0;
  for (size_t i = 0; i < pass.lengths.size(); ++i) {
    const int64_t length = pass.lengths[i];
    const auto part = [&](const at::Tensor& x) { return x.narrow(2, begin, length); };
    mixed.push_back(product(part(queries), part(keys), part(values), mask(i, length)));
    begin += length;
  }
  return at::cat(mixed, 2);
}

at::Tensor Decoder::AttentionCore(const Layer& layer, const at::Tensor& fused, const Pass& pass, int64_t window,
                                  CachePass* cache) const {
  const int64_t rows = fused.size(0);
  const int64_t tokens = fused.size(1);
  const int64_t heads = config_.num_heads;
  const int64_t kv_heads = config_.num_kv_heads;
  const at::Tensor qkv = fused.view({rows, tokens, heads + 2 * kv_heads, config_.head_dim});
  // Of views by one split, the gradients come together in one piece.
  at::Tensor queries_and_keys, values;
  if (config_.qk_norm) {
    const auto split = qkv.split_with_sizes({heads, kv_heads, kv_heads}, 2);
    queries_and_keys = at::cat({layer.q_norm(split[0]), layer.k_norm(split[1])}, 2);
    values = split[2];
  } else {
    const auto split = qkv.split_with_sizes({heads + kv_heads, kv_heads}, 2);
    queries_and_keys = split[0];
    values = split[1];
  }
  if (pass.cos.defined()) queries_and_keys = Rotate(queries_and_keys, pass.cos, pass.sin);
  const auto rotated = queries_and_keys.split_with_sizes({heads, kv_heads}, 2);
  const at::Tensor &queries = rotated[0], &keys = rotated[1];
  if (cache != nullptr) {
    return cache->Attend(layer.number, queries.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1), window)
        .reshape({rows, tokens, heads * config_.head_dim});
  }
  if (batch_invariant() && !fused.is_meta()) {
    return MixInvariantly(queries, keys, values, pass, window).reshape({rows, tokens, heads * config_.head_dim});
  }
  return Mix(queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), pass, window)
      .transpose(1, 2)
      .reshape({rows, tokens, heads * config_.head_dim});
}

at::Tensor Decoder::Attention(const Layer& layer, const at::Tensor& x_BTC, const std::shared_ptr<const Pass>& pass,
                              int64_t window, CachePass* cache) const {
  const auto core = [this, &layer, pass, window, cache](const at::Tensor& fused) {
    return AttentionCore(layer, fused, *pass, window, cache);
  };
  const bool again = recomputed_ == Recomputed::kAttentionCore || recomputed_ == Recomputed::kAttentionCoreAndMlp;
  const at::Tensor fused = layer.qkv(x_BTC, AdapterDropout(layer, &Layer::qkv, *pass));
  return layer.output(again && cache == nullptr
                          ? Recompute(core, fused, Defined({layer.q_norm.weight, layer.k_norm.weight}))
                          : core(fused),
                      AdapterDropout(layer, &Layer::output, *pass));
}

at::Tensor Decoder::Mlp(const Layer& layer, const at::Tensor& x_BTC, const Pass& pass) const {
  const at::Tensor wide = layer.up(x_BTC, AdapterDropout(layer, &Layer::up, pass));
  const auto down = [&](const at::Tensor& x) { return layer.down(x, AdapterDropout(layer, &Layer::down, pass)); };
  return down(config_.gated_mlp ? Gate(config_.activation, wide) : Activate(config_.activation, wide));
}

Dropout Decoder::DropoutAt(size_t place, const Pass& pass) const {
  if (!pass.dropout_seed) return {};
  return {dropout_, DeriveSeed(*pass.dropout_seed, place)};
}

Dropout Decoder::AdapterDropout(const Layer& layer, Linear Layer::*linear, const Pass& pass) const {
  if (!pass.dropout_seed || !lora_) return {};
  const auto number = static_cast<size_t>(std::find(std::begin(kLinears), std::end(kLinears), linear) - kLinears);
  // Behind the places of the residual stream.
  const size_t place = 1 + 2 * layers_.size() + std::size(kLinears) * layer.number + number;
  return {lora_->dropout, DeriveSeed(*pass.dropout_seed, place)};
}

at::Tensor Decoder::RunLayer(const Layer& layer, const at::Tensor& x_BTC, const std::shared_ptr<const Pass>& pass,
                             int64_t window, CachePass* cache) const {
  const bool before = !config_.post_norm;
  const auto norm = [](const Norm& part, bool here, const at::Tensor& x) { return here ? part(x) : x; };
  const at::Tensor attended = Attention(layer, norm(layer.attention_norm, before, x_BTC), pass, window, cache);
  at::Tensor x = x_BTC + Drop(attended, DropoutAt(1 + 2 * layer.number, *pass));
  x = norm(layer.attention_norm, !before, x);
  const auto mlp = [this, &layer, pass](const at::Tensor& y) { return Mlp(layer, y, *pass); };
  const at::Tensor normed = norm(layer.mlp_norm, before, x);
  const bool again = recomputed_ == Recomputed::kMlp || recomputed_ == Recomputed::kAttentionCoreAndMlp;
  const at::Tensor more =
      again && cache == nullptr ? Recompute(mlp, normed, model::ParametersOf({&layer.up, &layer.down})) : mlp(normed);
  x = x + Drop(more, DropoutAt(2 + 2 * layer.number, *pass));
  return norm(layer.mlp_norm, !before, x);
}

at::Tensor Decoder::Embed(const TokenBatch& batch) const {
  at::Tensor x_BTC = at::embedding(embedding_, batch.tokens).to(compute_type_);
  if (project_in_.weight.defined()) x_BTC = project_in_(x_BTC);
  if (positions_.defined()) {
    const at::Tensor rows = batch.positions + PositionOffset(config_.architecture);
    x_BTC = x_BTC + at::embedding(positions_, rows).to(compute_type_);
  }
  return x_BTC;
}

at::Tensor Decoder::Hidden(const TokenBatch& batch, CachePass* cache) const {
  // Gradients cannot flow through a cache: later tokens would see values without a history.
  at::AutoGradMode with_gradients(cache == nullptr && at::GradMode::is_enabled());
  const std::shared_ptr<Pass> pass = Prepare(batch, cache != nullptr);
  pass->watched.reserve(watch_ == nullptr ? 0 : layers_.size());  // they stay where they are
  at::Tensor x_BTC = Drop(Embed(batch), DropoutAt(0, *pass));
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (watch_ != nullptr) {
      watch_->BeforeUse(i);
      // Here, because later nodes of the graph come first in the backward pass: then those of the layer's weights come
      // behind all others of the layer, and before those of the layers below.
      pass->watched.push_back(layers_[i]);
      Watch(WeightsOf(pass->watched.back()), i);
    }
    const Layer& layer = watch_ == nullptr ? layers_[i] : pass->watched.back();
    const auto run = [this, &layer, pass, cache, window = config_.window(i)](const at::Tensor& x) {
      return RunLayer(layer, x, pass, window, cache);
    };
    x_BTC = recomputed_ == Recomputed::kLayers && cache == nullptr ? Recompute(run, x_BTC, ParametersOf(layer))
                                                                   : run(x_BTC);
    if (watch_ == nullptr) continue;
    watch_->AfterUse(i);
    x_BTC = WatchedOutput(x_BTC, i, *watch_);
  }
  if (config_.final_norm) x_BTC = norm_(x_BTC);
  return project_out_.weight.defined() ? project_out_(x_BTC) : x_BTC;
}

void Decoder::LimitVocabulary(int64_t tokens) {
  TORCH_CHECK(tokens >= 1 && tokens <= config_.vocab_size, tokens, " tokens of a vocabulary of ", config_.vocab_size);
  packed_head_ = nullptr;
  used_tokens_ = tokens;
}

at::Tensor Decoder::ComputedLogits(const at::Tensor& hidden) const {
  TORCH_CHECK(config_.head == Head::kTokens, "a decoder with a value head has no logits");
  return TokenHead()(hidden);
}

Linear Decoder::TokenHead() const {
  const at::Tensor& head = head_.defined() ? head_ : embedding_;
  return {.weight = used_tokens_ < head.size(0) ? head.narrow(0, 0, used_tokens_) : head,
          .bias = {},
          .arithmetic = arithmetic_,
          .packed = packed_head_};
}

at::Tensor Decoder::Logits(const at::Tensor& hidden) const {
  const at::Tensor logits = ComputedLogits(hidden);
  return c10::isReducedFloatingType(logits.scalar_type()) ? logits.to(at::kFloat) : logits;
}

at::Tensor Decoder::Values(const at::Tensor& hidden) const {
  TORCH_CHECK(config_.head == Head::kValue, "a decoder with a token head has no values");
  const at::Tensor values = Linear{.weight = head_, .bias = {}, .arithmetic = arithmetic_}(
      hidden.scalar_type() == at::kDouble ? hidden : hidden.to(at::kFloat));
  return values.squeeze(-1);
}

}  // namespace tdock::model
