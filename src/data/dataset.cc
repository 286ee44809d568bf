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
#include "data/column_path.h"
#include "data/known_forms.h"
#include "data/missing_file.h"
#include "data/prefetch.h"

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

// The error for a column that is missing among `names`.
absl::Status NoColumn(const std::string& path, const std::string& column, const std::vector<std::string>& names,
                      const std::string& key) {
  return absl::InvalidArgumentError(absl::StrCat(EscapeUnprintable(path), ": there is no column '",
                                                 EscapeForMessage(column), "'; there are: ", NamesOf(names), "; set ",
                                                 key, " to one of them"));
}

// The error of an adapter that names too little, with what the files have.
absl::Status LacksColumn(const absl::Status& error, std::span<const DataFile> files) {
  for (const DataFile& file : files) {
    if (file.records->size() == 0) continue;
    return absl::Status(error.code(), absl::StrCat(EscapeUnprintable(file.path), ": ", error.message(),
                                                   "; there are the columns ", NamesOf(file.records->columns())));
  }
  return error;
}

// What is wrong with a path into the objects of a column, of which none of the first records has the last field.
absl::Status CheckInside(const DataFile& file, const std::string& wanted, const ColumnPath& path,
                         const std::string& key) {
  constexpr int64_t kRecords = 100;
  std::vector<int64_t> first(static_cast<size_t>(std::min(file.records->size(), kRecords)));
  std::iota(first.begin(), first.end(), int64_t{0});
  const std::vector<std::string> outer(path.inside.begin(), path.inside.end() - 1);
  std::vector<std::string> names;
  absl::flat_hash_set<std::string> seen;
  for (absl::StatusOr<Record>& record : file.records->Read(first, {&path.column, 1})) {
    // What cannot be read is told when it is needed.
    if (!record.ok()) return absl::OkStatus();
    const absl::StatusOr<Value> object = CellInside(std::move((*record)[0]), outer);
    if (!object.ok() || (object->object() == nullptr && !object->is_nothing())) return absl::OkStatus();
    if (object->is_nothing()) continue;
    for (const auto& [name, cell] : *object->object()) {
      if (name == path.inside.back()) return absl::OkStatus();
      if (seen.insert(name).second) names.push_back(name);
    }
  }
  return names.empty() ? absl::OkStatus() : NoColumn(file.path, wanted, names, key);
}

// Whether a file belongs to a split by its name.
bool IsOfSplit(absl::string_view name, absl::string_view split) {
  return absl::ConsumePrefix(&name, split) &&
         (absl::StartsWith(name, ".") || absl::StartsWith(name, "-") || absl::StartsWith(name, "_"));
}

}  // namespace

absl::StatusOr<std::vector<DataFile>> OpenDataFiles(Env& env, std::span<const std::string> paths,
                                                    std::optional<Format> format, const RecordLimits& limits) {
  std::vector<DataFile> files;
  int64_t records = 0;
  for (const std::string& path : paths) {
    const absl::StatusOr<Format> found = format ? *format : FormatOfPath(path);
    if (!found.ok()) return found.status();
    TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<RecordFile> file, OpenRecordFile(env, path, *found, limits));
    records += file->size();
    files.push_back({.path = path, .format = *found, .records = std::move(file)});
  }
  if (records > 0) return files;
  return absl::InvalidArgumentError(
      absl::StrCat("there are no records in ", EscapeUnprintable(absl::StrJoin(paths, ", "))));
}

absl::StatusOr<std::unique_ptr<Dataset>> Dataset::Open(std::vector<DataFile> files, const Adapter& adapter, Phase phase,
                                                       const RecordLimits& limits) {
  std::unique_ptr<Dataset> made(new Dataset(adapter, phase));
  const absl::StatusOr<std::vector<std::string>> found = ColumnsOf(adapter, phase);
  if (!found.ok()) return LacksColumn(found.status(), files);
  const std::vector<std::string>& wanted = *found;
  text::ContentHasher hasher;
  for (const std::string& column : wanted) hasher.AddField(column);
  for (const std::string& column : adapter.unread) hasher.AddField(column);
  hasher.AddField(absl::StrCat(PhaseName(phase), " ", static_cast<int>(adapter.style), " ", adapter.truth_after));
  // They decide which records are bad, and so which are left out.
  hasher.AddField(absl::StrCat(limits.max_record_bytes, " ", limits.max_depth, " ", limits.max_columns));
  for (DataFile& file : files) {
    TDOCK_ASSIGN_OR_RETURN(Columns columns, made->FindColumns(file, wanted));
    hasher.AddField(FormatName(file.format));
    hasher.AddField(text::Hex(file.records->content()));
    made->begins_.push_back(made->begins_.back() + file.records->size());
    made->columns_.push_back(std::move(columns));
    made->files_.push_back(std::move(file));
  }
  made->content_ = hasher.Value();
  return made;
}

absl::StatusOr<std::unique_ptr<Dataset>> Dataset::Open(Env& env, std::span<const std::string> paths,
                                                       std::optional<Format> format, const Adapter& adapter,
                                                       Phase phase, const RecordLimits& limits) {
  TDOCK_RETURN_IF_ERROR(ColumnsOf(adapter, phase).status());
  TDOCK_ASSIGN_OR_RETURN(std::vector<DataFile> files, OpenDataFiles(env, paths, format, limits));
  return Open(std::move(files), adapter, phase, limits);
}

absl::StatusOr<Dataset::Columns> Dataset::FindColumns(const DataFile& file,
                                                      const std::vector<std::string>& wanted) const {
  Columns columns;
  const ColumnSet there(file.records->columns().begin(), file.records->columns().end());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const ColumnPath path = FindColumn(there, wanted[i]);
    if (!path.inside.empty() && file.records->size() > 0) {
      TDOCK_RETURN_IF_ERROR(CheckInside(file, wanted[i], path, KeyOfColumn(adapter_, phase_, i)));
    }
    columns.names.push_back(path.column);
    columns.inside.push_back(path.inside);
  }
  columns.read = columns.names.size();
  if (file.records->size() == 0) return columns;
  TDOCK_ASSIGN_OR_RETURN(const std::optional<std::string> lacking, file.records->Lacking(columns.names));
  if (!lacking) {
    AddUnread(file, columns);
    return columns;
  }
  const auto at = std::find(columns.names.begin(), columns.names.end(), *lacking) - columns.names.begin();
  return NoColumn(file.path, *lacking, file.records->columns(), KeyOfColumn(adapter_, phase_, static_cast<size_t>(at)));
}

void Dataset::AddUnread(const DataFile& file, Columns& columns) const {
  // Any JSON record may have columns that the first ones do not.
  const bool any_column = file.format == Format::kJson || file.format == Format::kJsonLines;
  const ColumnSet there(file.records->columns().begin(), file.records->columns().end());
  for (const std::string& column : adapter_.unread) {
    if (any_column || there.contains(column)) columns.names.push_back(column);
  }
  columns.inside.resize(columns.names.size());
}

absl::StatusOr<Sample> Dataset::SampleOf(Record record, const Columns& columns) const {
  for (size_t i = columns.read; i < record.size(); ++i) {
    if (!record[i].is_empty()) return UnreadColumn(adapter_, columns.names[i]);
  }
  record.resize(columns.read);
  for (size_t i = 0; i < record.size(); ++i) {
    if (columns.inside[i].empty()) continue;
    absl::StatusOr<Value> cell = CellInside(std::move(record[i]), columns.inside[i]);
    if (!cell.ok()) {
      return Annotate(cell.status(), absl::StrCat("column '", EscapeForMessage(columns.names[i]), "'"));
    }
    record[i] = *std::move(cell);
  }
  return MakeSample(adapter_, phase_, std::move(record));
}

size_t Dataset::FileOf(int64_t index) const {
  return static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), index) - begins_.begin()) - 1;
}

std::string Dataset::Place(int64_t index) const {
  const size_t file = FileOf(index);
  return files_[file].records->Place(index - begins_[file]);
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
    const RecordFile& opened = *files_[file].records;
    std::vector<absl::StatusOr<Record>> records = opened.Read(local, columns_[file].names);
    for (size_t i = 0; i < records.size(); ++i) {
      absl::StatusOr<OrSkip<Sample>>& made = samples[order[begin + i]];
      if (!records[i].ok()) {
        made = records[i].status();
        continue;
      }
      absl::StatusOr<Sample> sample = SampleOf(*std::move(records[i]), columns_[file]);
      if (sample.ok()) {
        made = *std::move(sample);
      } else {
        made = Annotate(sample.status(), opened.Place(local[i]));
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

void EncodedDataset::CountParts(int threads) {
  constexpr int64_t kCountedAtOnce = 128;
  if (!encoder_.makes_parts()) return;
  int64_t planned = 0;
  Prefetch<int64_t, std::vector<int64_t>> counted(
      threads,
      [&]() -> std::optional<int64_t> {
        if (planned >= records()) return std::nullopt;
        return std::exchange(planned, planned + kCountedAtOnce);
      },
      [&](int64_t begin) {
        std::vector<int64_t> indexes(static_cast<size_t>(std::min(kCountedAtOnce, records() - begin)));
        std::iota(indexes.begin(), indexes.end(), begin);
        std::vector<int64_t> parts;
        for (const absl::StatusOr<OrSkip<Sample>>& loaded : samples_.Load(indexes)) {
          const Sample* const sample = loaded.ok() ? std::get_if<Sample>(&*loaded) : nullptr;
          parts.push_back(sample == nullptr ? 1 : encoder_.Parts(*sample));
        }
        return parts;
      });
  std::vector<int64_t> begins = {0};
  while (const std::optional<std::vector<int64_t>> parts = counted.Next()) {
    for (const int64_t count : *parts) begins.push_back(begins.back() + count);
  }
  if (begins.back() > records()) begins_ = std::move(begins);
}

int64_t EncodedDataset::RecordOf(int64_t index) const {
  if (begins_.empty()) return index;
  return std::upper_bound(begins_.begin(), begins_.end(), index) - begins_.begin() - 1;
}

int64_t EncodedDataset::PartOf(int64_t index) const {
  return begins_.empty() ? 0 : index - begins_[static_cast<size_t>(RecordOf(index))];
}

std::vector<absl::StatusOr<OrSkip<EncodedSample>>> EncodedDataset::Load(std::span<const int64_t> indexes) const {
  std::vector<absl::StatusOr<OrSkip<EncodedSample>>> encoded;
  encoded.reserve(indexes.size());
  std::vector<int64_t> records;
  records.reserve(indexes.size());
  for (const int64_t index : indexes) records.push_back(RecordOf(index));
  std::vector<absl::StatusOr<OrSkip<Sample>>> samples = samples_.Load(records);
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].ok()) {
      encoded.emplace_back(samples[i].status());
    } else if (const Skip* skip = std::get_if<Skip>(&*samples[i])) {
      encoded.emplace_back(*skip);
    } else {
      encoded.push_back(encoder_.Encode(std::get<Sample>(*samples[i]), PartOf(indexes[i])));
      if (!encoded.back().ok()) encoded.back() = Annotate(encoded.back().status(), place_(records[i]));
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
  if (!any)
    return absl::NotFoundError(
        absl::StrCat(EscapeUnprintable(folder), ": there is no tokenizer.json and no tokenizer.model"));
  return hasher.Value();
}

absl::StatusOr<std::vector<std::string>> FindSplit(Env& env, const std::string& path, const std::string& split) {
  const absl::Status opened = env.OpenForReading(path).status();
  if (opened.ok()) return std::vector<std::string>{path};
  if (absl::IsNotFound(opened)) return MissingFile(env, path);
  if (absl::IsPermissionDenied(opened)) return opened;
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
  return absl::NotFoundError(absl::StrCat(EscapeUnprintable(folder), ": no file name begins with \"",
                                          EscapeForMessage(split), ".\"; there are: ", NamesOf(names)));
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
    return absl::NotFoundError(absl::StrCat("the data set \"", EscapeForMessage(name), "\" is not in the cache ",
                                            EscapeUnprintable(hub), " (", revision.status().message(),
                                            "); set data.path to a folder or a file that holds it"));
  }
  const absl::string_view commit = absl::StripAsciiWhitespace(*revision);
  if (commit.empty() || !std::all_of(commit.begin(), commit.end(), [](char c) { return absl::ascii_isxdigit(c); })) {
    return absl::InvalidArgumentError(absl::StrCat(EscapeUnprintable(folder), "/refs/main contains no revision"));
  }
  return JoinPath(JoinPath(folder, "snapshots"), commit);
}

}  // namespace tdock::data
