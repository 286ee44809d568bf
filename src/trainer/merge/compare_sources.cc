#include "trainer/merge/compare_sources.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "model/decoder/checkpoint.h"
#include "model/files/config.h"
#include "trainer/merge/first_difference.h"

namespace tdock::trainer {
namespace {

constexpr size_t kMostNames = 5;
constexpr size_t kMostValueText = 200;
constexpr uint64_t kMaxTokenizerBytes = uint64_t{512} << 20;

absl::StatusOr<nlohmann::json> ConfigOf(Env& env, const std::string& folder) {
  const std::string path = JoinPath(folder, "config.json");
  TDOCK_ASSIGN_OR_RETURN(const std::string text, ReadFileUpTo(env, path, model::kMaxConfigBytes));
  absl::StatusOr<nlohmann::json> config = ParseJsonObject(text, /*max_depth=*/16);
  if (!config.ok()) return Annotate(config.status(), path);
  // Compared with the weights, or of no effect.
  for (const char* key : {"dtype", "torch_dtype", "transformers_version", "_name_or_path"}) config->erase(key);
  return config;
}

std::string TextOf(const nlohmann::json& config, const std::string& key) {
  if (!config.contains(key)) return "missing";
  return EscapeUnprintable(JsonText(config[key]), kMostValueText);
}

absl::Status CompareConfigs(Env& env, const std::string& one, const std::string& other,
                            std::vector<std::string>& differences) {
  TDOCK_ASSIGN_OR_RETURN(const nlohmann::json a, ConfigOf(env, one));
  TDOCK_ASSIGN_OR_RETURN(const nlohmann::json b, ConfigOf(env, other));
  std::set<std::string> keys;
  for (const auto& [key, value] : a.items()) keys.insert(key);
  for (const auto& [key, value] : b.items()) keys.insert(key);
  for (const std::string& key : keys) {
    if (a.contains(key) && b.contains(key) && a[key] == b[key]) continue;
    differences.push_back(
        absl::StrCat("config.json: ", EscapeForMessage(key), " is ", TextOf(a, key), ", and ", TextOf(b, key)));
  }
  return absl::OkStatus();
}

absl::Status CompareTokenizers(Env& env, const std::string& one, const std::string& other,
                               std::vector<std::string>& differences) {
  const std::vector<std::string> names = model::TokenizerFileNames();
  const auto has_any = [&](const std::string& folder) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return env.Exists(JoinPath(folder, name)); });
  };
  if (!has_any(one) || !has_any(other)) return absl::OkStatus();  // as shards may have none
  for (const std::string& name : names) {
    const std::string a = JoinPath(one, name), b = JoinPath(other, name);
    if (env.Exists(a) != env.Exists(b)) {
      differences.push_back(absl::StrCat(EscapeUnprintable(env.Exists(a) ? other : one), " lacks ", name));
      continue;
    }
    if (!env.Exists(a)) continue;
    TDOCK_ASSIGN_OR_RETURN(const std::string first, ReadFileUpTo(env, a, kMaxTokenizerBytes));
    TDOCK_ASSIGN_OR_RETURN(const std::string second, ReadFileUpTo(env, b, kMaxTokenizerBytes));
    if (first == second) continue;
    const auto at = std::mismatch(first.begin(), first.end(), second.begin(), second.end()).first - first.begin();
    differences.push_back(absl::StrCat(name, ": byte ", at, " differs"));
  }
  return absl::OkStatus();
}

// The names of weights that only `one` has.
void AddMissing(const WeightSource& one, const WeightSource& other, std::vector<std::string>& differences) {
  std::set<std::string> there;
  for (const model::NamedInfo& weight : other.weights) there.insert(weight.name);
  std::vector<std::string> missing;
  for (const model::NamedInfo& weight : one.weights) {
    if (!there.contains(weight.name)) missing.push_back(model::ShowName(weight.name));
  }
  if (missing.empty()) return;
  const size_t count = missing.size();
  missing.resize(std::min(count, kMostNames));
  differences.push_back(absl::StrCat(other.what, " lacks ", count, count == 1 ? " weight: " : " weights: ",
                                     absl::StrJoin(missing, ", "), count > kMostNames ? ", …" : ""));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> CompareSources(Env& env, const WeightSource& one, const WeightSource& other,
                                                        std::optional<DType> dtype,
                                                        const std::function<void(const std::string&)>& progress) {
  std::vector<std::string> differences;
  TDOCK_RETURN_IF_ERROR(CompareConfigs(env, one.config_folder, other.config_folder, differences));
  TDOCK_RETURN_IF_ERROR(CompareTokenizers(env, one.tokenizer_folder, other.tokenizer_folder, differences));
  AddMissing(one, other, differences);
  AddMissing(other, one, differences);
  for (size_t i = 0; i < one.weights.size(); ++i) {
    const std::string& name = one.weights[i].name;
    const size_t there = IndexOf(other, name);
    if (there == other.weights.size()) continue;
    progress(name);
    TDOCK_ASSIGN_OR_RETURN(const auto difference, FirstDifference(one, i, other, there, dtype));
    if (!difference) continue;
    differences.push_back(absl::StrCat("weight ", model::ShowName(name), ": ", *difference));
    break;
  }
  return differences;
}

}  // namespace tdock::trainer
