#include "data/dataset.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::data {
namespace {

constexpr uint64_t kMaxRevisionBytes = 4096;

std::string NamesOf(const std::vector<std::string>& names) {
  constexpr size_t kShown = 20;
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) shown.push_back(EscapeForMessage(names[i]));
  if (names.size() > kShown) shown.push_back(absl::StrCat("and ", names.size() - kShown, " more"));
  return shown.empty() ? "none" : absl::StrJoin(shown, ", ");
}

absl::Status CheckColumns(const std::string& path, const RecordFile& file, const std::vector<std::string>& wanted) {
  TDOCK_ASSIGN_OR_RETURN(const std::optional<std::string> lacking, file.Lacking(wanted));
  if (!lacking) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": there is no column '", EscapeForMessage(*lacking),
                                                 "'; there are: ", NamesOf(file.columns())));
}

// Whether a file belongs to a split by its name.
bool IsOfSplit(absl::string_view name, absl::string_view split) {
  return absl::ConsumePrefix(&name, split) &&
         (absl::StartsWith(name, ".") || absl::StartsWith(name, "-") || absl::StartsWith(name, "_"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> Dataset::Open(Env& env, std::span<const std::string> paths,
                                                       std::optional<Format> format, const Adapter& adapter,
                                                       Phase phase, const RecordLimits& limits) {
  std::unique_ptr<Dataset> made(new Dataset(adapter, phase));
  TDOCK_ASSIGN_OR_RETURN(made->columns_, ColumnsOf(adapter, phase));
  text::ContentHasher hasher;
  for (const std::string& column : made->columns_) hasher.AddField(column);
  hasher.AddField(absl::StrCat(PhaseName(phase), " ", static_cast<int>(adapter.style)));
  // They decide which records are bad, and so which are left out.
  hasher.AddField(absl::StrCat(limits.max_record_bytes, " ", limits.max_depth, " ", limits.max_columns));
  for (const std::string& path : paths) {
    const absl::StatusOr<Format> found = format ? *format : FormatOfPath(path);
    if (!found.ok()) return found.status();
    TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<RecordFile> file, OpenRecordFile(env, path, *found, limits));
    if (file->size() > 0) TDOCK_RETURN_IF_ERROR(CheckColumns(path, *file, made->columns_));
    hasher.AddField(FormatName(*found));
    hasher.AddField(text::Hex(file->content()));
    made->begins_.push_back(made->begins_.back() + file->size());
    made->files_.push_back(std::move(file));
  }
  if (made->size() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("the data set \"", EscapeForMessage(adapter.name),
                                                   "\" has no records; its files are: ", absl::StrJoin(paths, ", ")));
  }
  made->content_ = hasher.Value();
  return made;
}

size_t Dataset::FileOf(int64_t index) const {
  return static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), index) - begins_.begin()) - 1;
}

std::string Dataset::Place(int64_t index) const {
  const size_t file = FileOf(index);
  return files_[file]->Place(index - begins_[file]);
}

std::vector<absl::StatusOr<OrSkip<Sample>>> Dataset::Load(std::span<const int64_t> indexes) const {
  std::vector<absl::StatusOr<OrSkip<Sample>>> samples(indexes.size());
  // What is of one file is read together, in the order of the file.
  std::vector<size_t> order(indexes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return indexes[a] < indexes[b]; });
  for (size_t at = 0; at < order.size();) {
    const size_t begin = at;
    const size_t file = FileOf(indexes[order[at]]);
    std::vector<int64_t> local;
    for (; at < order.size() && indexes[order[at]] < begins_[file + 1]; ++at) {
      local.push_back(indexes[order[at]] - begins_[file]);
    }
    std::vector<absl::StatusOr<Record>> records = files_[file]->Read(local, columns_);
    for (size_t i = 0; i < records.size(); ++i) {
      absl::StatusOr<OrSkip<Sample>>& made = samples[order[begin + i]];
      if (!records[i].ok()) {
        made = records[i].status();
        continue;
      }
      absl::StatusOr<Sample> sample = MakeSample(adapter_, phase_, *std::move(records[i]));
      if (sample.ok()) {
        made = *std::move(sample);
      } else {
        made = Annotate(sample.status(), files_[file]->Place(local[i]));
      }
    }
  }
  return samples;
}

EncodedDataset::EncodedDataset(const Source<Sample>& samples, SampleEncoder encoder,
                               const text::ContentHash& tokenizer_content, std::function<std::string(int64_t)> place)
    : samples_(samples), encoder_(std::move(encoder)), place_(std::move(place)) {
  text::ContentHasher hasher;
  hasher.AddField(text::Hex(samples.content()));
  hasher.AddField(text::Hex(tokenizer_content));
  hasher.AddField(encoder_.Description());
  content_ = hasher.Value();
}

std::vector<absl::StatusOr<OrSkip<EncodedSample>>> EncodedDataset::Load(std::span<const int64_t> indexes) const {
  std::vector<absl::StatusOr<OrSkip<EncodedSample>>> encoded;
  encoded.reserve(indexes.size());
  std::vector<absl::StatusOr<OrSkip<Sample>>> samples = samples_.Load(indexes);
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].ok()) {
      encoded.emplace_back(samples[i].status());
    } else if (const Skip* skip = std::get_if<Skip>(&*samples[i])) {
      encoded.emplace_back(*skip);
    } else {
      encoded.push_back(encoder_.Encode(std::get<Sample>(*samples[i])));
      if (!encoded.back().ok()) encoded.back() = Annotate(encoded.back().status(), place_(indexes[i]));
    }
  }
  return encoded;
}

absl::StatusOr<text::ContentHash> TokenizerContent(Env& env, const std::string& folder) {
  text::ContentHasher hasher;
  bool any = false;
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}) {
    const std::string path = JoinPath(folder, name);
    if (!env.Exists(path)) continue;
    TDOCK_ASSIGN_OR_RETURN(const auto file, env.MapFile(path));
    hasher.AddField(name);
    hasher.AddField({reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()});
    any = true;
  }
  if (!any) return absl::NotFoundError(absl::StrCat(folder, ": there is no tokenizer.json and no tokenizer.model"));
  return hasher.Value();
}

absl::StatusOr<std::vector<std::string>> FindSplit(Env& env, const std::string& path, const std::string& split) {
  if (env.OpenForReading(path).ok()) return std::vector<std::string>{path};
  TDOCK_ASSIGN_OR_RETURN(std::vector<std::string> names, env.List(path));
  std::string folder = path;
  if (std::find(names.begin(), names.end(), "data") != names.end() && env.List(JoinPath(path, "data")).ok()) {
    folder = JoinPath(path, "data");
    TDOCK_ASSIGN_OR_RETURN(names, env.List(folder));
  }
  std::vector<std::string> splits = {split};
  if (split == "eval" || split == "test" || split == "validation") {
    for (const char* other : {"eval", "test", "validation"}) {
      if (split != other) splits.emplace_back(other);
    }
  }
  for (const std::string& wanted : splits) {
    std::vector<std::string> found;
    for (const std::string& name : names) {
      if (IsOfSplit(name, wanted)) found.push_back(JoinPath(folder, name));
    }
    if (!found.empty()) return found;
  }
  return absl::NotFoundError(absl::StrCat(folder, ": no file name begins with \"", EscapeForMessage(split),
                                          ".\"; there are: ", NamesOf(names)));
}

std::string DefaultHubCache(const std::function<const char*(const char*)>& variable) {
  const auto value = [&](const char* name) -> std::string {
    const char* const found = variable(name);
    return found == nullptr ? "" : found;
  };
  if (const std::string cache = value("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = value("HF_HOME"); !home.empty()) return JoinPath(home, "hub");
  if (const std::string home = value("HOME"); !home.empty()) return JoinPath(home, ".cache/huggingface/hub");
  return "";
}

absl::StatusOr<std::string> FindInHubCache(Env& env, const std::string& hub, absl::string_view name) {
  if (FindInvalidUtf8(name) || absl::StrContains(name, "..") || absl::StrContains(name, '\0')) {
    return absl::InvalidArgumentError(absl::StrCat("\"", EscapeForMessage(name), "\" is not the name of a data set"));
  }
  const std::string folder = JoinPath(hub, absl::StrCat("datasets--", absl::StrReplaceAll(name, {{"/", "--"}})));
  const absl::StatusOr<std::string> revision = ReadFileUpTo(env, JoinPath(folder, "refs/main"), kMaxRevisionBytes);
  if (!revision.ok()) {
    return absl::NotFoundError(absl::StrCat("the data set \"", EscapeForMessage(name), "\" is not in the cache ", hub,
                                            " (", revision.status().message(),
                                            "); set data.path to a folder or a file that holds it"));
  }
  const absl::string_view commit = absl::StripAsciiWhitespace(*revision);
  if (commit.empty() || !std::all_of(commit.begin(), commit.end(), [](char c) { return absl::ascii_isxdigit(c); })) {
    return absl::InvalidArgumentError(absl::StrCat(folder, "/refs/main contains no revision"));
  }
  return JoinPath(JoinPath(folder, "snapshots"), commit);
}

}  // namespace tdock::data
