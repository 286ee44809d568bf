#include "trainer/merge/weight_source.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "model/files/config.h"
#include "trainer/merge/first_difference.h"

namespace tdock::trainer {
namespace {

constexpr char kHead[] = "lm_head.weight";
constexpr const char* kEmbeddings[] = {"model.embed_tokens.weight", "transformer.wte.weight",
                                       "model.decoder.embed_tokens.weight"};
constexpr int kMaxConfigDepth = 16;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

absl::Status CheckTied(const WeightSource& source, size_t head, size_t embedding) {
  TDOCK_ASSIGN_OR_RETURN(const auto difference, FirstDifference(source, head, source, embedding, std::nullopt));
  if (!difference) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(EscapeUnprintable(JoinPath(source.config_folder, "config.json")),
                                                 " says tie_word_embeddings: true, but in ", source.what, " ", kHead,
                                                 " is not ", source.weights[embedding].name, ": ", *difference,
                                                 "; is it the config.json of this model?"));
}

void LeaveOut(size_t left_out, WeightSource& source) {
  source.weights.erase(source.weights.begin() + static_cast<std::ptrdiff_t>(left_out));
  source.read = [left_out, read = std::move(source.read)](size_t index, const at::Tensor& into) {
    return read(index < left_out ? index : index + 1, into);
  };
}

}  // namespace

bool NameBefore(const std::string& one, const std::string& other) {
  size_t i = 0, j = 0;
  while (i < one.size() && j < other.size()) {
    if (!IsDigit(one[i]) || !IsDigit(other[j])) {
      if (one[i] != other[j]) return one[i] < other[j];
      ++i, ++j;
      continue;
    }
    const size_t a = i, b = j;
    while (i < one.size() && IsDigit(one[i])) ++i;
    while (j < other.size() && IsDigit(other[j])) ++j;
    if (i - a != j - b) return i - a < j - b;
    if (const int order = one.compare(a, i - a, other, b, j - b); order != 0) return order < 0;
  }
  return one.size() - i < other.size() - j;
}

size_t IndexOf(const WeightSource& source, const std::string& name) {
  const auto found = std::find_if(source.weights.begin(), source.weights.end(),
                                  [&](const model::NamedInfo& weight) { return weight.name == name; });
  return static_cast<size_t>(found - source.weights.begin());
}

absl::Status ApplyTying(Env& env, WeightSource& source) {
  const std::string path = JoinPath(source.config_folder, "config.json");
  TDOCK_ASSIGN_OR_RETURN(const std::string text, ReadFileUpTo(env, path, model::kMaxConfigBytes));
  const absl::StatusOr<nlohmann::json> json = ParseJsonObject(text, kMaxConfigDepth);
  if (!json.ok()) return Annotate(json.status(), path);
  const nlohmann::json tied = json->value("tie_word_embeddings", nlohmann::json());
  if (!tied.is_boolean()) return absl::OkStatus();  // depends on the architecture: what is there is kept
  const size_t head = IndexOf(source, kHead), none = source.weights.size();
  if (tied.get<bool>()) {
    const auto* const embedding = std::find_if(std::begin(kEmbeddings), std::end(kEmbeddings),
                                               [&](const char* name) { return IndexOf(source, name) != none; });
    if (head == none || embedding == std::end(kEmbeddings)) return absl::OkStatus();
    TDOCK_RETURN_IF_ERROR(CheckTied(source, head, IndexOf(source, *embedding)));
    LeaveOut(head, source);
    return absl::OkStatus();
  }
  const nlohmann::json architectures = json->value("architectures", nlohmann::json::array());
  const bool has_head = architectures.is_array() && !architectures.empty() && architectures[0].is_string() &&
                        absl::EndsWith(architectures[0].get<std::string>(), "ForCausalLM");
  if (!has_head || head != none) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(source.what, " has no ", kHead, ", but ", EscapeUnprintable(path),
                                                 " says tie_word_embeddings: false; its answers would be garbage"));
}

}  // namespace tdock::trainer
