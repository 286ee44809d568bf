#include "model/decoder/weight_names.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tdock::model {
namespace {

struct Names {
  const char* prefix;  // of everything but the head
  const char* embedding;
  const char* positions;
  const char* layers;
  const char* attention_norm;
  const char* q;  // or of query, key and value together
  const char* k;
  const char* v;
  const char* output;
  const char* mlp_norm;
  const char* gate;
  const char* up;
  const char* down;
  const char* norm;
  bool inputs_first;  // linear weights are [in, out]
};

constexpr Names kRotaryNames = {"model.",
                                "embed_tokens",
                                "",
                                "layers.",
                                "input_layernorm",
                                "self_attn.q_proj",
                                "self_attn.k_proj",
                                "self_attn.v_proj",
                                "self_attn.o_proj",
                                "post_attention_layernorm",
                                "mlp.gate_proj",
                                "mlp.up_proj",
                                "mlp.down_proj",
                                "norm",
                                false};
constexpr Names kOptNames = {"model.",
                             "decoder.embed_tokens",
                             "decoder.embed_positions",
                             "decoder.layers.",
                             "self_attn_layer_norm",
                             "self_attn.q_proj",
                             "self_attn.k_proj",
                             "self_attn.v_proj",
                             "self_attn.out_proj",
                             "final_layer_norm",
                             "",
                             "fc1",
                             "fc2",
                             "decoder.final_layer_norm",
                             false};
constexpr Names kGpt2Names = {"transformer.", "wte",  "wpe", "h.",       "ln_1",       "attn.c_attn", "",  "",
                              "attn.c_proj",  "ln_2", "",    "mlp.c_fc", "mlp.c_proj", "ln_f",        true};

const Names& NamesOf(Architecture architecture) {
  switch (architecture) {
    case Architecture::kOpt:
      return kOptNames;
    case Architecture::kGpt2:
      return kGpt2Names;
    default:
      return kRotaryNames;
  }
}

}  // namespace

std::string WeightPrefix(Architecture architecture) { return NamesOf(architecture).prefix; }

bool StoresInputsFirst(Architecture architecture) { return NamesOf(architecture).inputs_first; }

std::string HeadName(Head head) { return head == Head::kValue ? "score.weight" : "lm_head.weight"; }

bool IsKnownBuffer(absl::string_view name) {
  return absl::EndsWith(name, ".attn.bias") || absl::EndsWith(name, ".attn.masked_bias") ||
         absl::EndsWith(name, ".rotary_emb.inv_freq");
}

void WeightNames::Add(const Decoder::LinearPart& part, NamedTensors* named) const {
  const Linear& linear = decoder_.layers_[part.layer].*part.linear;
  const at::Tensor weight = linear.weight.narrow(0, part.begin, part.rows);
  const bool inputs_first = StoresInputsFirst(decoder_.config_.architecture);
  named->emplace_back(absl::StrCat(part.path, ".weight"), inputs_first ? weight.t() : weight);
  const at::Tensor& bias = linear.bias;
  if (bias.defined()) named->emplace_back(absl::StrCat(part.path, ".bias"), bias.narrow(0, part.begin, part.rows));
}

void WeightNames::Add(const std::string& name, const Norm& norm, NamedTensors* named) const {
  if (norm.weight.defined()) named->emplace_back(absl::StrCat(name, ".weight"), norm.weight);
  if (norm.bias.defined()) named->emplace_back(absl::StrCat(name, ".bias"), norm.bias);
}

// In the order of the layout: those of the attention first.
std::vector<Decoder::LinearPart> WeightNames::Linears(size_t index) const {
  const ModelConfig& config = decoder_.config_;
  const Names& names = NamesOf(config.architecture);
  using Layer = Decoder::Layer;
  const std::string prefix = absl::StrCat(names.prefix, names.layers, index, ".");
  const int64_t query = config.num_heads * config.head_dim;
  const int64_t kv = config.num_kv_heads * config.head_dim;
  const int64_t wide = config.intermediate_size;
  std::vector<Decoder::LinearPart> parts;
  const auto add = [&](const char* name, Linear Layer::*linear, int64_t begin, int64_t rows) {
    parts.push_back({prefix + name, index, linear, begin, rows});
  };
  if (*names.k == '\0') {
    add(names.q, &Layer::qkv, 0, query + 2 * kv);
  } else {
    add(names.q, &Layer::qkv, 0, query);
    add(names.k, &Layer::qkv, query, kv);
    add(names.v, &Layer::qkv, query + kv, kv);
  }
  add(names.output, &Layer::output, 0, config.hidden_size);
  if (config.gated_mlp) add(names.gate, &Layer::up, 0, wide);
  add(names.up, &Layer::up, config.gated_mlp ? wide : 0, wide);
  add(names.down, &Layer::down, 0, config.hidden_size);
  return parts;
}

std::vector<Decoder::LinearPart> WeightNames::Linears() const {
  std::vector<Decoder::LinearPart> all;
  for (size_t i = 0; i < decoder_.layers_.size(); ++i) {
    for (Decoder::LinearPart& part : Linears(i)) all.push_back(std::move(part));
  }
  return all;
}

void WeightNames::AddLayer(size_t index, NamedTensors* named) const {
  const Names& names = NamesOf(decoder_.config_.architecture);
  const Decoder::Layer& layer = decoder_.layers_[index];
  const std::string prefix = absl::StrCat(names.prefix, names.layers, index, ".");
  Add(prefix + names.attention_norm, layer.attention_norm, named);
  for (const Decoder::LinearPart& part : Linears(index)) Add(part, named);
  Add(prefix + "self_attn.q_norm", layer.q_norm, named);
  Add(prefix + "self_attn.k_norm", layer.k_norm, named);
  Add(prefix + names.mlp_norm, layer.mlp_norm, named);
}

NamedTensors WeightNames::All() const {
  at::NoGradGuard no_grad;
  const ModelConfig& config = decoder_.config_;
  const Names& names = NamesOf(config.architecture);
  const std::string prefix = names.prefix;
  NamedTensors named = {{absl::StrCat(prefix, names.embedding, ".weight"), decoder_.embedding_}};
  if (decoder_.positions_.defined()) {
    named.emplace_back(absl::StrCat(prefix, names.positions, ".weight"), decoder_.positions_);
  }
  if (config.embedding_size > 0) {
    named.emplace_back(prefix + "decoder.project_in.weight", decoder_.project_in_.weight);
    named.emplace_back(prefix + "decoder.project_out.weight", decoder_.project_out_.weight);
  }
  for (size_t i = 0; i < decoder_.layers_.size(); ++i) AddLayer(i, &named);
  Add(prefix + names.norm, decoder_.norm_, &named);
  if (decoder_.head_.defined()) named.emplace_back(HeadName(config.head), decoder_.head_);
  return named;
}

}  // namespace tdock::model
