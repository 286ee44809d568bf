#include "model/files/weight_files.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::model {
namespace {

using Json = nlohmann::json;

constexpr char kSingleName[] = "model.safetensors";
constexpr uint64_t kMaxIndexBytes = uint64_t{256} << 20;
constexpr int kMaxIndexDepth = 4;

std::string FileName(size_t file, size_t files) {
  return files == 1 ? kSingleName : absl::StrFormat("model-%05d-of-%05d.safetensors", file + 1, files);
}

bool IsDigits(absl::string_view text) {
  return text.size() == 5 && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The names that are written here, and what a save that was killed left aside.
bool IsWeightFile(absl::string_view name) {
  name = name.substr(0, name.find(".writing-"));
  if (name == kSingleName || name == kWeightIndex) return true;
  if (!absl::ConsumePrefix(&name, "model-") || !absl::ConsumeSuffix(&name, ".safetensors")) return false;
  return name.size() == 14 && IsDigits(name.substr(0, 5)) && name.substr(5, 4) == "-of-" && IsDigits(name.substr(9));
}

}  // namespace

absl::StatusOr<std::map<std::string, std::vector<std::string>>> ParseWeightIndex(absl::string_view text) {
  TDOCK_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text, kMaxIndexDepth));
  if (!json.contains("weight_map") || !json.at("weight_map").is_object()) {
    return absl::InvalidArgumentError("key 'weight_map' must be an object");
  }
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [name, file] : json.at("weight_map").items()) {
    const std::string text_of_file = file.is_string() ? file.get<std::string>() : "";
    if (text_of_file.empty() || text_of_file.find('/') != std::string::npos || text_of_file.front() == '.' ||
        EscapeUnprintable(text_of_file) != text_of_file) {
      return absl::InvalidArgumentError(absl::StrCat("weight '", ShowName(name),
                                                     "': ", EscapeUnprintable(JsonText(file), 80),
                                                     " is not the name of a file in this folder"));
    }
    files[text_of_file].push_back(name);
    if (files.size() > kMaxWeightFiles)
      return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxWeightFiles, " files"));
  }
  if (files.empty()) return absl::InvalidArgumentError("'weight_map' names no weights");
  return files;
}

absl::StatusOr<WeightFiles> WeightFiles::Open(Env& env, const std::string& folder) {
  WeightFiles result;
  const std::string single = JoinPath(folder, kSingleName);
  const std::string index = JoinPath(folder, kWeightIndex);
  std::map<std::string, std::vector<std::string>> files = {{kSingleName, {}}};
  const bool sharded = !env.Exists(single) && env.Exists(index);
  result.path_ = sharded ? index : single;
  if (!sharded && !env.Exists(single) && env.Exists(JoinPath(folder, "pytorch_model.bin"))) {
    return absl::UnimplementedError(
        absl::StrCat(EscapeUnprintable(folder),
                     ": pytorch_model.bin is not read, because it may contain code; save the model as safetensors "
                     "with Python `transformers`: model.save_pretrained(folder)"));
  }
  if (sharded) {
    TDOCK_ASSIGN_OR_RETURN(const std::string text, ReadFileUpTo(env, index, kMaxIndexBytes));
    auto read = ParseWeightIndex(text);
    if (!read.ok()) return Annotate(read.status(), index);
    files = *std::move(read);
  }
  for (const auto& [name, promised] : files) {
    TDOCK_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(env, JoinPath(folder, name)));
    for (const std::string& weight : promised) {
      if (!file.Has(weight)) {
        return absl::InvalidArgumentError(
            absl::StrCat(EscapeUnprintable(index), ": weight '", ShowName(weight), "' is not in ", name));
      }
    }
    for (const std::string& weight : file.names()) {
      const auto [known, fresh] = result.file_of_.emplace(weight, result.files_.size());
      if (!fresh)
        return absl::InvalidArgumentError(
            absl::StrCat(EscapeUnprintable(index), ": weight '", ShowName(weight), "' is in two files"));
    }
    result.files_.push_back(std::move(file));
  }
  return result;
}

std::vector<std::string> WeightFiles::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

const SafetensorsFile* WeightFiles::Find(const std::string& name) const {
  const auto found = file_of_.find(name);
  return found == file_of_.end() ? nullptr : &files_[found->second];
}

std::vector<WeightFile> CutIntoFiles(std::span<const NamedInfo> weights, uint64_t max_file_bytes) {
  std::vector<WeightFile> files(1);
  uint64_t size = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const uint64_t bytes = weights[i].info.bytes();
    if (size > 0 && bytes > max_file_bytes - std::min(size, max_file_bytes)) {
      files.push_back({.begin = i});
      size = 0;
    }
    size += bytes;
    files.back().end = i + 1;
  }
  for (size_t file = 0; file < files.size(); ++file) files[file].name = FileName(file, files.size());
  return files;
}

std::string WeightIndexJson(std::span<const NamedInfo> weights, std::span<const WeightFile> files) {
  uint64_t total = 0;
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  for (const WeightFile& file : files) {
    for (const NamedInfo& weight : weights.subspan(file.begin, file.end - file.begin)) {
      map[weight.name] = file.name;
      total += weight.info.bytes();
    }
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  return JsonText(index, 2) + "\n";
}

absl::Status WriteWeightFiles(Env& env, const std::string& folder, std::span<const NamedInfo> weights,
                              uint64_t max_file_bytes, const BytesOfTensor& bytes_of) {
  const std::vector<WeightFile> files = CutIntoFiles(weights, max_file_bytes);
  std::set<std::string> written;
  for (const WeightFile& file : files) {
    TDOCK_RETURN_IF_ERROR(WriteSafetensors(env, JoinPath(folder, file.name),
                                           weights.subspan(file.begin, file.end - file.begin),
                                           [&](size_t i) { return bytes_of(file.begin + i); }));
    written.insert(file.name);
  }
  if (files.size() > 1) {
    TDOCK_RETURN_IF_ERROR(WriteFileAtomically(env, JoinPath(folder, kWeightIndex), WeightIndexJson(weights, files)));
    written.insert(kWeightIndex);
  }
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> there, env.List(folder));
  for (const std::string& name : there) {
    if (IsWeightFile(name) && !written.contains(name)) TDOCK_RETURN_IF_ERROR(env.Remove(JoinPath(folder, name)));
  }
  return absl::OkStatus();
}

}  // namespace tdock::model
