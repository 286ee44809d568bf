#include "trainer/run_log/run_summary.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/file_lock.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/config/spec.h"
#include "trainer/run_log/metrics_log.h"

namespace tdock::trainer {
namespace {

constexpr uint64_t kMaxConfigBytes = uint64_t{4} << 20;
constexpr int kFolderDepth = 3;

absl::StatusOr<std::map<std::string, std::string>> ReadConfigOfRun(Env& env, const std::string& path) {
  const auto no_run = [&](absl::string_view why) {
    return absl::NotFoundError(
        absl::StrCat(EscapeForMessage(path, 1000),
                     " is not the folder of a run, which has a config.yaml with a recipe, and tensorboard/", why));
  };
  const std::string config_path = JoinPath(path, "config.yaml");
  const absl::StatusOr<std::string> yaml = ReadFileUpTo(env, config_path, kMaxConfigBytes);
  if (absl::IsNotFound(yaml.status())) return no_run("");
  TDOCK_RETURN_IF_ERROR(yaml.status());
  absl::StatusOr<std::map<std::string, std::string>> config = config::ValuesIn(*yaml, config_path);
  if (!config.ok()) return no_run(absl::StrCat(": ", config.status().message()));
  if (!config->contains("recipe") || !env.Exists(JoinPath(path, "tensorboard"))) return no_run("");
  return config;
}

// The lines at the end of a file that begin in its last `max_bytes`; none if there is no such file.
absl::StatusOr<std::string> LastLines(Env& env, const std::string& path, uint64_t max_bytes) {
  const absl::StatusOr<std::unique_ptr<ReadableFile>> file = env.OpenForReading(path);
  if (absl::IsNotFound(file.status())) return "";
  TDOCK_RETURN_IF_ERROR(file.status());
  const uint64_t size = (*file)->size();
  // With the byte before them, which tells whether a line begins there.
  const uint64_t begin = size > max_bytes ? size - max_bytes - 1 : 0;
  std::string text(size - begin, '\0');
  TDOCK_RETURN_IF_ERROR((*file)->ReadAt(begin, std::span(text)));
  if (size <= max_bytes) return text;
  const size_t newline = text.find('\n');
  return newline == std::string::npos ? "" : text.substr(newline + 1);
}

void TakeStep(const LogRecord& record, RunSummary& summary) {
  const int64_t step = record["step"].get<int64_t>();
  summary.last_step = step;
  for (const auto& [name, json] : record.items()) {
    if (name == "step" || !json.is_number()) continue;
    const double value = json.get<double>();
    if (!std::isfinite(value)) continue;
    const auto [found, is_new] = summary.metrics.try_emplace(name, MetricSummary{value, step, value, value});
    if (is_new) continue;
    MetricSummary& metric = found->second;
    metric = {value, step, std::min(metric.least, value), std::max(metric.most, value)};
  }
}

void FindRunsBelow(Env& env, const std::filesystem::path& folder, int depth, std::vector<std::string>& found) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code unreadable;
    if (!it->is_directory(unreadable) || it->is_symlink(unreadable)) continue;
    if (IsRun(env, it->path())) {
      found.push_back(it->path());
    } else if (depth > 1) {
      FindRunsBelow(env, it->path(), depth - 1, found);
    }
  }
}

}  // namespace

absl::StatusOr<RunState> RunStateOf(Env& env, const std::string& path) {
  TDOCK_ASSIGN_OR_RETURN(const bool running, IsLocked(JoinPath(path, "lock")));
  if (running) return RunState::kRunning;
  if (env.Exists(JoinPath(path, "checkpoint/config.json"))) return RunState::kFinished;
  const auto checkpoints = env.List(JoinPath(path, "checkpoints"));
  const bool resumable =
      checkpoints.ok() && std::any_of(checkpoints->begin(), checkpoints->end(),
                                      [](const auto& name) { return absl::StartsWith(name, "step-"); });
  return resumable ? RunState::kInterrupted : RunState::kFailed;
}

absl::string_view ToText(RunState state) {
  switch (state) {
    case RunState::kRunning:
      return "running";
    case RunState::kFinished:
      return "finished";
    case RunState::kInterrupted:
      return "interrupted";
    case RunState::kFailed:
      return "failed";
  }
  return "failed";
}

std::optional<bool> GreaterIsBetter(absl::string_view metric) {
  const auto has = [&](absl::string_view word) { return absl::StrContains(metric, word); };
  if (has("accuracy") || has("reward") || has("score")) return true;
  if (has("loss") || has("perplexity")) return false;
  return std::nullopt;
}

std::optional<double> BestOf(absl::string_view metric, const MetricSummary& summary) {
  const std::optional<bool> greater = GreaterIsBetter(metric);
  if (!greater) return std::nullopt;
  return *greater ? summary.most : summary.least;
}

std::string RunSummary::recipe() const {
  const auto found = config.find("recipe");
  return found == config.end() ? "" : found->second;
}

bool IsRun(Env& env, const std::string& path) { return ReadConfigOfRun(env, path).ok(); }

absl::StatusOr<RunSummary> SummarizeRun(Env& env, const std::string& path, uint64_t max_metrics_bytes) {
  RunSummary summary{.path = path, .config = {}, .last_step = {}, .metrics = {}, .changed = {}};
  TDOCK_ASSIGN_OR_RETURN(summary.config, ReadConfigOfRun(env, path));
  // First: a run that ends now left everything that is read below.
  TDOCK_ASSIGN_OR_RETURN(summary.state, RunStateOf(env, path));
  TDOCK_ASSIGN_OR_RETURN(const std::string lines, LastLines(env, JoinPath(path, "metrics.jsonl"), max_metrics_bytes));
  ForEachRecord(lines, [&](const LogRecord& record) { TakeStep(record, summary); });
  const FolderUse use = MeasureFolder(path);
  summary.bytes = use.bytes;
  summary.changed = use.changed;
  return summary;
}

absl::StatusOr<std::vector<std::string>> FindRuns(Env& env, const std::string& root) {
  if (!std::filesystem::is_directory(root)) {
    return absl::NotFoundError(absl::StrCat("there is no folder ", EscapeForMessage(root, 1000)));
  }
  std::vector<std::string> found;
  FindRunsBelow(env, root, kFolderDepth, found);
  std::sort(found.begin(), found.end());
  return found;
}

FolderUse MeasureFolder(const std::string& path) {
  FolderUse use;
  const auto add = [&](const std::string& entry) {
    struct stat facts;
    if (::lstat(entry.c_str(), &facts) != 0) return;
    if (!S_ISDIR(facts.st_mode)) use.bytes += static_cast<uint64_t>(facts.st_size);
    use.changed = std::max(use.changed, absl::TimeFromTimespec(facts.st_mtim));
  };
  add(path);
  std::error_code error;
  constexpr auto kSkipDenied = std::filesystem::directory_options::skip_permission_denied;
  for (std::filesystem::recursive_directory_iterator it(path, kSkipDenied, error), end; !error && it != end;
       it.increment(error)) {
    add(it->path());
  }
  return use;
}

}  // namespace tdock::trainer
