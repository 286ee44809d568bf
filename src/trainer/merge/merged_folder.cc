#include "trainer/merge/merged_folder.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "core/base/file_lock.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/tensor/checksum.h"
#include "model/decoder/checkpoint.h"
#include "model/decoder/finite_numbers.h"
#include "model/decoder/weight_names.h"
#include "model/files/config.h"
#include "model/files/weight_files.h"
#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/merge/first_difference.h"

namespace tdock::trainer {
namespace {

constexpr char kNotes[] = "merge.json";  // what of an unfinished merge is done
constexpr char kLock[] = "merge.lock";
constexpr uint64_t kMaxNotesBytes = uint64_t{64} << 20;
constexpr uint64_t kOtherBytes = uint64_t{1} << 20;  // about what all but weights and tokenizer need

// Whether a file says how weights are read: how strong adapters are, how the parts of a matrix lie in it.
bool SaysHowToRead(const std::string& name) {
  return name == "config.json" || name == "adapter_config.json" || name == "lora_train_meta.json" ||
         (absl::StartsWith(name, "state") && absl::EndsWith(name, ".json"));
}

// Changes with everything that the files to be written depend on: with weights as far as sizes and times tell.
std::string PlanOf(Env& env, const WeightSource& source, const MergeOptions& options) {
  std::string text = absl::StrCat(options.dtype ? Name(*options.dtype) : "stored", "\n", options.max_file_bytes, "\n");
  for (const model::NamedInfo& weight : source.weights) {
    absl::StrAppend(&text, weight.name, " ", Name(weight.info.dtype));
    for (const int64_t size : weight.info.shape) absl::StrAppend(&text, " ", size);
    absl::StrAppend(&text, "\n");
  }
  std::set<std::string> folders = {source.config_folder, source.tokenizer_folder};
  for (const std::string& file : source.files) folders.insert(std::filesystem::path(file).parent_path());
  for (const std::string& file : source.files) {
    std::error_code ignored;
    const auto size = std::filesystem::file_size(file, ignored);
    const auto changed = std::filesystem::last_write_time(file, ignored).time_since_epoch().count();
    absl::StrAppend(&text, file, " ", size, " ", changed, "\n");
  }
  for (const std::string& folder : folders) {
    const absl::StatusOr<std::vector<std::string>> names = env.List(folder.empty() ? "." : folder);
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      if (!SaysHowToRead(name)) continue;
      const std::string path = JoinPath(folder, name);
      const auto file = MeasureFile(env, path);
      absl::StrAppend(&text, path, " ", file.ok() ? absl::StrCat(file->bytes, " ", file->checksum) : "unreadable",
                      "\n");
    }
  }
  RunningChecksum checksum;
  checksum.Reset();
  checksum.Add(std::as_bytes(std::span(text)));
  return absl::StrFormat("%016x", checksum.Value());
}

class Merge {
 public:
  Merge(Env& env, const WeightSource& source, std::string target, const MergeOptions& options)
      : env_(env),
        source_(source),
        options_(options),
        target_(std::move(target)),
        work_(JoinPath(ParentOf(target_), absl::StrCat(".", NameOf(target_), ".merging"))),
        plan_(PlanOf(env, source, options)) {
    for (const model::NamedInfo& weight : source.weights) {
      weights_.push_back({weight.name, {ConvertedTo(weight.info.dtype, options.dtype), weight.info.shape}});
      progress_.bytes += weights_.back().info.bytes();
    }
    files_ = model::CutIntoFiles(weights_, options.max_file_bytes);
    progress_.files = files_.size();
  }

  absl::Status Run(size_t* kept) {
    if (!weights_.empty()) TDOCK_RETURN_IF_ERROR(CheckTarget());
    if (weights_.empty()) return absl::InvalidArgumentError(absl::StrCat(source_.what, " has no weights"));
    if (files_.size() > model::kMaxWeightFiles) {
      return absl::InvalidArgumentError(absl::StrCat("files of ", options_.max_file_bytes, " bytes would be ",
                                                     files_.size(), "; a model has at most ", model::kMaxWeightFiles,
                                                     ": allow larger ones"));
    }
    TDOCK_RETURN_IF_ERROR(env_.CreateFolders(work_));
    TDOCK_ASSIGN_OR_RETURN(
        lock_, FileLock::Take(JoinPath(work_, kLock), absl::StrCat("process ", ::getpid(), " merges here")));
    if (absl::Status status = CheckTarget(); !status.ok()) {  // another has ended meanwhile
      env_.RemoveAll(work_).IgnoreError();
      return status;
    }
    TDOCK_RETURN_IF_ERROR(KeepWhatIsDone());
    if (kept != nullptr) *kept = done_.size();
    TDOCK_RETURN_IF_ERROR(CheckSpace());
    if (absl::Status status = WriteAll(); !status.ok()) return Explained(status);
    return absl::OkStatus();
  }

 private:
  static std::string ParentOf(const std::string& path) {
    const std::string parent = std::filesystem::path(path).parent_path().string();
    return parent.empty() ? "." : parent;
  }
  static std::string NameOf(const std::string& path) { return std::filesystem::path(path).filename().string(); }

  absl::Status CheckTarget() const {
    if (!env_.Exists(target_)) return absl::OkStatus();
    TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> there, env_.List(target_));
    if (there.empty()) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat(EscapeUnprintable(target_), " is there already, with ",
                                                 EscapeForMessage(there.front()),
                                                 " in it: remove it, or name another folder"));
  }

  // Reads the notes of an earlier merge, and removes what is not known to be whole.
  absl::Status KeepWhatIsDone() {
    const std::string path = JoinPath(work_, kNotes);
    std::map<std::string, Manifest::File> known;
    if (env_.Exists(path)) {
      TDOCK_ASSIGN_OR_RETURN(const std::string text, ReadFileUpTo(env_, path, kMaxNotesBytes));
      const auto notes = ParseJsonObject(text, /*max_depth=*/3);
      if (notes.ok() && notes->value("plan", nlohmann::json()) == plan_) known = ParseDone(*notes);
    }
    TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> there, env_.List(work_));
    for (const std::string& name : there) {
      if (name == kLock) continue;
      const auto found = known.find(name);
      if (found != known.end()) {
        const auto file = MeasureFile(env_, JoinPath(work_, name));
        if (file.ok() && file->bytes == found->second.bytes && file->checksum == found->second.checksum) {
          done_.insert(*found);
          continue;
        }
      }
      TDOCK_RETURN_IF_ERROR(env_.RemoveAll(JoinPath(work_, name)));
    }
    return absl::OkStatus();
  }

  std::map<std::string, Manifest::File> ParseDone(const nlohmann::json& notes) const {
    std::map<std::string, Manifest::File> done;
    const nlohmann::json files = notes.value("done", nlohmann::json::object());
    for (const model::WeightFile& file : files_) {
      const nlohmann::json entry = files.value(file.name, nlohmann::json());
      uint64_t checksum = 0;
      if (!entry.is_object() || !entry.value("bytes", nlohmann::json()).is_number_unsigned() ||
          !entry.value("xxh3", nlohmann::json()).is_string() ||
          !absl::SimpleHexAtoi(entry["xxh3"].get<std::string>(), &checksum)) {
        continue;
      }
      done[file.name] = {entry["bytes"].get<uint64_t>(), checksum};
    }
    return done;
  }

  absl::Status WriteNotes() const {
    nlohmann::ordered_json files = nlohmann::ordered_json::object();
    for (const auto& [name, file] : done_) {
      files[name] = {{"bytes", file.bytes}, {"xxh3", absl::StrFormat("%016x", file.checksum)}};
    }
    const nlohmann::ordered_json notes = {{"source", source_.what}, {"plan", plan_}, {"done", files}};
    return WriteFileAtomically(env_, JoinPath(work_, kNotes), JsonText(notes, 1) + "\n");
  }

  uint64_t BytesMissing() const {
    uint64_t missing = progress_.bytes;
    for (const auto& [name, file] : done_) missing -= std::min(missing, file.bytes);
    for (const std::string& name : model::TokenizerFileNames()) {
      std::error_code error;
      const auto size = std::filesystem::file_size(JoinPath(source_.tokenizer_folder, name), error);
      if (!error) missing += size;
    }
    return missing + kOtherBytes;
  }

  absl::Status CheckSpace() const {
    std::error_code error;
    const auto space = std::filesystem::space(work_, error);
    if (error || space.available >= BytesMissing()) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(EscapeUnprintable(target_), " needs ", BytesMissing(),
                                                     " bytes more, and the disk of ", EscapeUnprintable(work_), " has ",
                                                     space.available, " free"));
  }

  absl::Status WriteAll() {
    for (const model::WeightFile& file : files_) {
      TDOCK_RETURN_IF_ERROR(WriteWeightsOf(file));
      ++progress_.files_done;
      progress_.at.clear();
      options_.progress(progress_);
    }
    if (files_.size() > 1) {
      TDOCK_RETURN_IF_ERROR(
          WriteFileAtomically(env_, JoinPath(work_, model::kWeightIndex), model::WeightIndexJson(weights_, files_)));
    }
    TDOCK_RETURN_IF_ERROR(model::CopyTokenizerFiles(env_, source_.tokenizer_folder, work_));
    for (const char* name : {"generation_config.json", "preprocessor_config.json", "processor_config.json"}) {
      const std::string path = JoinPath(source_.config_folder, name);
      if (!env_.Exists(path)) continue;
      TDOCK_ASSIGN_OR_RETURN(const std::string text, ReadFileUpTo(env_, path, model::kMaxConfigBytes));
      TDOCK_RETURN_IF_ERROR(WriteFileAtomically(env_, JoinPath(work_, name), text));
    }
    TDOCK_RETURN_IF_ERROR(WriteConfig());
    // With the lock, so that no other merge begins in between, and the notes, so that one goes on if this fails.
    TDOCK_RETURN_IF_ERROR(env_.Rename(work_, target_));
    // The model is whole: if these stay, nobody reads them.
    for (const char* name : {kNotes, kLock}) env_.RemoveAll(JoinPath(target_, name)).IgnoreError();
    return absl::OkStatus();
  }

  absl::Status WriteWeightsOf(const model::WeightFile& file) {
    const auto own = std::span(weights_).subspan(file.begin, file.end - file.begin);
    if (!done_.contains(file.name)) {
      at::Tensor current;
      const std::string path = JoinPath(work_, file.name);
      uint64_t bytes = progress_.bytes_done;
      const auto bytes_of = [&](size_t i) -> absl::StatusOr<std::span<const std::byte>> {
        progress_.at = own[i].name;
        progress_.bytes_done = bytes;
        options_.progress(progress_);
        current = at::Tensor();  // before there is the next
        TDOCK_ASSIGN_OR_RETURN(current, ReadWeight(source_, file.begin + i, options_.dtype));
        if (!model::IsKnownBuffer(own[i].name)) {
          TDOCK_RETURN_IF_ERROR(
              Annotate(model::CheckFinite(current, {.shape = current.sizes()}, current.scalar_type()),
                       absl::StrCat("weight '", model::ShowName(own[i].name), "' of ", source_.what)));
        }
        bytes += own[i].info.bytes();
        return std::span(static_cast<const std::byte*>(current.const_data_ptr()), current.nbytes());
      };
      progress_.bytes_done = bytes;
      const uint64_t before = bytes;
      TDOCK_RETURN_IF_ERROR(model::WriteSafetensors(env_, path, own, bytes_of));
      progress_.bytes_done = before;
      TDOCK_ASSIGN_OR_RETURN(done_[file.name], MeasureFile(env_, path));
      TDOCK_RETURN_IF_ERROR(WriteNotes());
    }
    for (const model::NamedInfo& weight : own) progress_.bytes_done += weight.info.bytes();
    return absl::OkStatus();
  }

  // The dtype of most of the numbers, as transformers loads the model.
  DType MainDType() const {
    std::map<DType, uint64_t> bytes;
    for (const model::NamedInfo& weight : weights_) bytes[weight.info.dtype] += weight.info.bytes();
    return std::max_element(bytes.begin(), bytes.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; })
        ->first;
  }

  absl::Status WriteConfig() {
    const std::string path = JoinPath(source_.config_folder, "config.json");
    TDOCK_ASSIGN_OR_RETURN(const std::string text, ReadFileUpTo(env_, path, model::kMaxConfigBytes));
    const auto checked = ParseJsonObject(text, /*max_depth=*/16);
    if (!checked.ok()) return Annotate(checked.status(), path);
    nlohmann::ordered_json config = ReadOrderedJson(text);
    config[config.contains("torch_dtype") ? "torch_dtype" : "dtype"] = std::string(Name(MainDType()));
    return WriteFileAtomically(env_, JoinPath(work_, "config.json"), JsonText(config, 2) + "\n");
  }

  absl::Status Explained(const absl::Status& status) const {
    return absl::Status(
        status.code(),
        absl::StrCat(status.message(), "; there is no ", EscapeUnprintable(target_), " yet: ", done_.size(), " of ",
                     files_.size(), " files are kept in ", EscapeUnprintable(work_),
                     absl::IsResourceExhausted(status)
                         ? absl::StrCat(", and about ", BytesMissing(), " bytes more are needed")
                         : "",
                     "; the same command goes on from there"));
  }

  Env& env_;
  const WeightSource& source_;
  const MergeOptions& options_;
  const std::string target_, work_, plan_;
  std::vector<model::NamedInfo> weights_;
  std::vector<model::WeightFile> files_;
  std::map<std::string, Manifest::File> done_;  // by name, verified
  std::unique_ptr<FileLock> lock_;
  MergeProgress progress_;
};

}  // namespace

absl::Status WriteMergedFolder(Env& env, const WeightSource& source, const std::string& target,
                               const MergeOptions& options, size_t* kept) {
  std::string path = std::filesystem::path(target).lexically_normal().string();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (path.empty() || path == "." || path == ".." || path == "/") {
    return absl::InvalidArgumentError(absl::StrCat("'", EscapeForMessage(target), "' is not the name of a new folder"));
  }
  return Merge(env, source, std::move(path), options).Run(kept);
}

absl::StatusOr<uint64_t> ParseFileSize(const std::string& text) {
  constexpr std::pair<const char*, uint64_t> kUnits[] = {{"KIB", uint64_t{1} << 10},
                                                         {"MIB", uint64_t{1} << 20},
                                                         {"GIB", uint64_t{1} << 30},
                                                         {"KB", 1'000},
                                                         {"MB", 1'000'000},
                                                         {"GB", 1'000'000'000},
                                                         {"B", 1}};
  std::string upper = text;
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  absl::string_view digits = upper;
  uint64_t unit = 1, number = 0;
  for (const auto& [name, bytes] : kUnits) {
    if (!absl::ConsumeSuffix(&digits, name)) continue;
    unit = bytes;
    break;
  }
  if (!absl::SimpleAtoi(digits, &number) || number == 0 || number > (uint64_t{1} << 60) / unit) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", EscapeForMessage(text), "' is not a size such as 5GB, 500MB or 2GiB"));
  }
  return number * unit;
}

}  // namespace tdock::trainer
