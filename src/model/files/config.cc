#include "model/files/config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/files/config_keys.h"

namespace tdock::model {
namespace {

class Violations {
 public:
  void Within(absl::string_view key, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) {
      Add(absl::StrCat(key, " must be between ", least, " and ", most, ", not ", value));
    }
  }
  void Positive(absl::string_view key, double value) {
    if (!(value > 0) || !std::isfinite(value)) Add(absl::StrCat(key, " must be positive, not ", value));
  }
  void Add(std::string complaint) { wrong_.push_back(std::move(complaint)); }
  bool none() const { return wrong_.empty(); }
  absl::Status Status() const {
    return none() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(wrong_, "; "));
  }

 private:
  std::vector<std::string> wrong_;
};

void CheckRope(const ModelConfig& c, Violations& wrong) {
  if (c.head_dim % 2 != 0) {
    wrong.Add(absl::StrCat("head_dim must be even for the rotary embedding, not ", c.head_dim));
  }
  const RopeConfig& rope = c.rope;
  wrong.Positive("rope_theta", rope.theta);
  if (rope.type == RopeType::kDefault) return;
  if (!(rope.factor >= 1) || !std::isfinite(rope.factor)) {
    wrong.Add(absl::StrCat("factor of the rope's scaling must be at least 1, not ", rope.factor));
  }
  wrong.Within("original_max_position_embeddings", rope.original_max_positions, 0, kMaxPositions);
  if (rope.type == RopeType::kLlama3) {
    wrong.Positive("low_freq_factor", rope.low_freq_factor);
    if (!(rope.high_freq_factor > rope.low_freq_factor) || !std::isfinite(rope.high_freq_factor)) {
      wrong.Add(absl::StrCat("high_freq_factor must be above low_freq_factor (", rope.low_freq_factor, "), not ",
                             rope.high_freq_factor));
    }
  }
  if (rope.type == RopeType::kYarn) {
    wrong.Positive("attention_factor", rope.attention_factor.value_or(1));
    wrong.Positive("beta_slow", rope.beta_slow);
    if (!(rope.beta_fast > rope.beta_slow) || !std::isfinite(rope.beta_fast)) {
      wrong.Add(absl::StrCat("beta_fast must be above beta_slow (", rope.beta_slow, "), not ", rope.beta_fast));
    }
    if (rope.theta == 1) wrong.Add("rope_theta must not be 1 for yarn");
    for (const auto mscale : {rope.mscale, rope.mscale_all_dim}) {
      if (!(mscale.value_or(0) >= 0)) wrong.Add(absl::StrCat("mscale must not be negative, and is ", *mscale));
    }
  }
}

}  // namespace

int64_t ModelConfig::context_length() const {
  if (positions == Positions::kLearned || rope.type == RopeType::kDefault) return max_positions;
  const int64_t original = rope.original_max_positions > 0 ? rope.original_max_positions : max_positions;
  const double stretched = std::min(rope.factor * static_cast<double>(original), static_cast<double>(kMaxPositions));
  return std::max(max_positions, static_cast<int64_t>(stretched));
}

std::vector<int64_t> EosTokenIds(const ModelConfig& config) {
  std::vector<int64_t> ids = config.other_eos_token_ids;
  if (config.eos_token_id) ids.insert(ids.begin(), *config.eos_token_id);
  return ids;
}

absl::string_view Name(Architecture architecture) { return KeysOf(architecture).model_type; }

absl::Status Validate(const ModelConfig& c) {
  const ArchitectureKeys& names = KeysOf(c.architecture);
  Violations wrong;
  wrong.Within("vocab_size", c.vocab_size, 1, kMaxSize);
  wrong.Within(names.hidden_size, c.hidden_size, 1, kMaxSize);
  wrong.Within("word_embed_proj_dim", c.embedding_size, 0, kMaxSize);
  wrong.Within(names.intermediate_size, c.intermediate_size, 1, kMaxSize);
  wrong.Within(names.num_layers, c.num_layers, 1, kMaxLayers);
  wrong.Within(names.num_heads, c.num_heads, 1, kMaxHeads);
  wrong.Within("num_key_value_heads", c.num_kv_heads, 1, kMaxHeads);
  wrong.Within("head_dim", c.head_dim, 1, kMaxHeadDim);
  wrong.Within(names.max_positions, c.max_positions, 1, kMaxPositions);
  if (wrong.none() && c.num_heads % c.num_kv_heads != 0) {
    wrong.Add(absl::StrCat(names.num_heads, " (", c.num_heads, ") must be a multiple of num_key_value_heads (",
                           c.num_kv_heads, ")"));
  }
  wrong.Positive(names.norm_eps == nullptr ? "norm_eps" : names.norm_eps, c.norm_eps);
  if (c.positions == Positions::kRotary) CheckRope(c, wrong);
  if (!c.windows.empty() && static_cast<int64_t>(c.windows.size()) != c.num_layers) {
    wrong.Add(absl::StrCat("there are windows for ", c.windows.size(), " layers of ", c.num_layers));
  }
  for (const auto& [key, id] : {std::pair("bos_token_id", c.bos_token_id), std::pair("eos_token_id", c.eos_token_id),
                                std::pair("pad_token_id", c.pad_token_id)}) {
    if (id && (*id < 0 || *id >= c.vocab_size)) {
      wrong.Add(absl::StrCat(key, " must be at least 0 and below vocab_size (", c.vocab_size, "), not ", *id));
    }
  }
  for (const int64_t id : c.other_eos_token_ids) {
    if (id < 0 || id >= c.vocab_size) wrong.Add(absl::StrCat("eos_token_id has ", id, ", which is no token"));
  }
  return wrong.Status();
}

}  // namespace tdock::model
