#include "trainer/merge/listing/megatron_names.h"

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"

namespace tdock::trainer {
namespace {

using model::Architecture;
using model::ModelConfig;

// Finds the stored tensors, and takes down which are used.
class Mapping {
 public:
  Mapping(const std::vector<StoredTensor>& tensors, const ModelConfig& config) : tensors_(tensors), config_(config) {
    for (size_t i = 0; i < tensors.size(); ++i) by_name_[tensors[i].name] = i;
  }

  // A weight of these rows of a stored tensor that should have this shape, but perhaps more rows than are used.
  absl::Status Add(const std::string& name, const std::string& stored, std::vector<int64_t> stored_shape,
                   std::vector<RowRange> rows = {}, bool more_rows = false) {
    const auto found = by_name_.find(stored);
    if (found == by_name_.end()) return Missing(stored, name);
    used_.insert(found->second);
    return AddFrom(name, found->second, -1, std::move(stored_shape), std::move(rows), more_rows);
  }

  // The same of a layer, which has a tensor of its own, "decoder.layers.3.REST", or a place in one of all layers,
  // "decoder.layers.REST".
  absl::Status AddOfLayer(const std::string& name, int64_t layer, absl::string_view rest,
                          std::vector<int64_t> stored_shape, std::vector<RowRange> rows = {}) {
    const std::string own = absl::StrCat("decoder.layers.", layer, ".", rest);
    const std::string all = absl::StrCat("decoder.layers.", rest);
    const bool has_own = by_name_.contains(own);
    if (!has_own && !by_name_.contains(all)) return Missing(own, name);
    const size_t tensor = by_name_[has_own ? own : all];
    used_.insert(tensor);
    return AddFrom(name, tensor, has_own ? -1 : layer, std::move(stored_shape), std::move(rows), false);
  }

  bool Has(const std::string& stored) const { return by_name_.contains(stored); }
  bool HasOfLayer(int64_t layer, absl::string_view rest) const {
    return Has(absl::StrCat("decoder.layers.", layer, ".", rest)) || Has(absl::StrCat("decoder.layers.", rest));
  }
  void Ignore(const std::string& stored) {
    if (Has(stored)) used_.insert(by_name_[stored]);
  }

  absl::StatusOr<std::vector<MappedWeight>> Finish() && {
    std::vector<std::string> unknown;
    for (const auto& [name, index] : by_name_) {
      const bool other = absl::StrContains(name, "_extra_state") || absl::StartsWith(name, "optimizer") ||
                         absl::StartsWith(name, "rng_state") || absl::StartsWith(name, "rerun_state");
      if (!other && !used_.contains(index) && unknown.size() < 5) unknown.push_back(model::ShowName(name));
    }
    if (unknown.empty()) return std::move(weights_);
    return absl::InvalidArgumentError(
        absl::StrCat("tensors that a ", Name(config_.architecture),
                     " of this config.json does not have: ", absl::StrJoin(unknown, ", ")));
  }

 private:
  absl::Status Missing(const std::string& stored, const std::string& name) const {
    return absl::InvalidArgumentError(absl::StrCat("there is no tensor '", stored, "', of which ", name, " is made"));
  }

  absl::Status AddFrom(const std::string& name, size_t tensor, int64_t layer, std::vector<int64_t> shape,
                       std::vector<RowRange> rows, bool more_rows) {
    std::vector<int64_t> there = tensors_[tensor].info.shape;
    bool fits = true;
    if (layer >= 0) {
      fits = !there.empty() && there[0] == config_.num_layers;
      if (fits) there.erase(there.begin());
    }
    if (fits && more_rows && !there.empty() && there[0] > shape[0]) there[0] = shape[0];
    if (!fits || there != shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", tensors_[tensor].name, "' has the shape [", absl::StrJoin(tensors_[tensor].info.shape, ", "),
          "], not [", layer >= 0 ? absl::StrCat(config_.num_layers, ", ") : "", absl::StrJoin(shape, ", "), "]"));
    }
    if (rows.empty()) rows.push_back({0, 0, shape[0]});
    shape[0] = 0;
    for (const RowRange& range : rows) shape[0] += range.rows;
    weights_.push_back({name, std::move(shape), tensor, layer, std::move(rows)});
    return absl::OkStatus();
  }

  const std::vector<StoredTensor>& tensors_;
  const ModelConfig& config_;
  std::map<std::string, size_t> by_name_;
  std::set<size_t> used_;
  std::vector<MappedWeight> weights_;
};

// Of each key's group, which is its queries, the key and the value: the rows of `part`, 0, 1 or 2.
std::vector<RowRange> RowsOfQkv(const ModelConfig& config, int part) {
  const int64_t queries = config.num_heads / config.num_kv_heads;
  const int64_t group = (queries + 2) * config.head_dim;
  const int64_t rows = (part == 0 ? queries : 1) * config.head_dim;
  const int64_t begin = part == 0 ? 0 : (queries + part - 1) * config.head_dim;
  std::vector<RowRange> ranges;
  for (int64_t head = 0; head < config.num_kv_heads; ++head)
    ranges.push_back({head * group + begin, head * rows, rows});
  return ranges;
}

absl::Status AddAttention(const ModelConfig& config, int64_t layer, const std::string& prefix, Mapping& mapping) {
  constexpr const char* kParts[] = {"q_proj", "k_proj", "v_proj"};
  const int64_t all = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim;
  const int64_t hidden = config.hidden_size;
  for (int part = 0; part < 3; ++part) {
    const std::string name = absl::StrCat(prefix, "self_attn.", kParts[part]);
    TDOCK_RETURN_IF_ERROR(mapping.AddOfLayer(name + ".weight", layer, "self_attention.linear_qkv.weight", {all, hidden},
                                             RowsOfQkv(config, part)));
    if (!config.qkv_bias) continue;
    TDOCK_RETURN_IF_ERROR(
        mapping.AddOfLayer(name + ".bias", layer, "self_attention.linear_qkv.bias", {all}, RowsOfQkv(config, part)));
  }
  if (config.qk_norm) {
    TDOCK_RETURN_IF_ERROR(mapping.AddOfLayer(prefix + "self_attn.q_norm.weight", layer,
                                             "self_attention.q_layernorm.weight", {config.head_dim}));
    TDOCK_RETURN_IF_ERROR(mapping.AddOfLayer(prefix + "self_attn.k_norm.weight", layer,
                                             "self_attention.k_layernorm.weight", {config.head_dim}));
  }
  return mapping.AddOfLayer(prefix + "self_attn.o_proj.weight", layer, "self_attention.linear_proj.weight",
                            {hidden, config.num_heads * config.head_dim});
}

absl::Status AddLayer(const ModelConfig& config, int64_t layer, Mapping& mapping) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const int64_t hidden = config.hidden_size, wide = config.intermediate_size;
  // A norm before a fused projection is stored with it, or alone.
  const auto norm = [&](const char* name, absl::string_view fused, absl::string_view alone) {
    return mapping.AddOfLayer(prefix + name, layer, mapping.HasOfLayer(layer, fused) ? fused : alone, {hidden});
  };
  TDOCK_RETURN_IF_ERROR(
      norm("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"));
  TDOCK_RETURN_IF_ERROR(AddAttention(config, layer, prefix, mapping));
  TDOCK_RETURN_IF_ERROR(
      norm("post_attention_layernorm.weight", "mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"));
  TDOCK_RETURN_IF_ERROR(mapping.AddOfLayer(prefix + "mlp.gate_proj.weight", layer, "mlp.linear_fc1.weight",
                                           {2 * wide, hidden}, {{0, 0, wide}}));
  TDOCK_RETURN_IF_ERROR(mapping.AddOfLayer(prefix + "mlp.up_proj.weight", layer, "mlp.linear_fc1.weight",
                                           {2 * wide, hidden}, {{wide, 0, wide}}));
  return mapping.AddOfLayer(prefix + "mlp.down_proj.weight", layer, "mlp.linear_fc2.weight", {hidden, wide});
}

}  // namespace

absl::StatusOr<std::vector<MappedWeight>> MapMegatron(const std::vector<StoredTensor>& tensors,
                                                      const ModelConfig& config) {
  const Architecture architecture = config.architecture;
  const bool known = architecture == Architecture::kLlama || architecture == Architecture::kMistral ||
                     architecture == Architecture::kQwen2 || architecture == Architecture::kQwen3;
  if (!known || config.output_bias || config.mlp_bias || config.head != model::Head::kTokens) {
    return absl::UnimplementedError(
        absl::StrCat("the names that Megatron has for a ", Name(architecture),
                     config.head == model::Head::kValue ? " with a value head"
                     : known                            ? " with biases"
                                                        : "",
                     " are not known; known are those of Llama, Mistral, Qwen2 and Qwen3 as language models"));
  }
  Mapping mapping(tensors, config);
  const std::vector<int64_t> rows = {config.vocab_size, config.hidden_size};
  TDOCK_RETURN_IF_ERROR(mapping.Add("model.embed_tokens.weight", "embedding.word_embeddings.weight", rows, {}, true));
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    TDOCK_RETURN_IF_ERROR(AddLayer(config, layer, mapping));
  }
  TDOCK_RETURN_IF_ERROR(mapping.Add("model.norm.weight", "decoder.final_layernorm.weight", {config.hidden_size}));
  if (config.tied_head) {
    mapping.Ignore("output_layer.weight");
  } else {
    TDOCK_RETURN_IF_ERROR(mapping.Add("lm_head.weight", "output_layer.weight", rows, {}, true));
  }
  return std::move(mapping).Finish();
}

}  // namespace tdock::trainer
