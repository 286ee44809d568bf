// What the folder of a run tells those who were not there: which run it is, how far it got, what it takes on the disk.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/env.h"

namespace tdock::trainer {

enum class RunState {
  kRunning,      // a process holds its lock
  kFinished,     // it left its model
  kInterrupted,  // it can go on from a checkpoint
  kFailed,       // none of these
};
absl::string_view ToText(RunState state);  // "running", "finished", "interrupted", "failed"

// Of the run in the folder `path`. Errors of the system, about its lock.
absl::StatusOr<RunState> RunStateOf(Env& env, const std::string& path);

// A metric, over the steps that were read. Values that are not finite do not count.
struct MetricSummary {
  double last = 0;
  int64_t last_step = 0;
  double least = 0;
  double most = 0;
};

// The value that a run is after, where the name tells: the most of an accuracy, a reward or a score, the least of a
// loss or a perplexity.
std::optional<double> BestOf(absl::string_view metric, const MetricSummary& summary);
// Whether a greater value of the metric is better; nothing if its name does not tell.
std::optional<bool> GreaterIsBetter(absl::string_view metric);

struct RunSummary {
  std::string path;
  RunState state = RunState::kFailed;
  std::map<std::string, std::string> config;  // of config.yaml, by dotted key, as YAML
  std::optional<int64_t> last_step;
  std::map<std::string, MetricSummary> metrics;
  uint64_t bytes = 0;  // of all files
  absl::Time changed;  // the last change of any of them

  std::string recipe() const;  // "" if the configuration has none
};

// Whether `path` looks like the folder of a run: no other has a config.yaml with a recipe, and tensorboard/.
bool IsRun(Env& env, const std::string& path);

// NotFound if it is not the folder of a run. Of a metrics.jsonl with more than `max_metrics_bytes` only the last ones
// are read. The run may be at work.
absl::StatusOr<RunSummary> SummarizeRun(Env& env, const std::string& path, uint64_t max_metrics_bytes);

// The runs in `root`, in folders in it, and so on, three folders deep; sorted by path. Links are not followed. NotFound
// if there is no such folder.
absl::StatusOr<std::vector<std::string>> FindRuns(Env& env, const std::string& root);

// The bytes of all files in `path`, and when one was last changed. What disappears meanwhile does not count. Links
// count as themselves.
struct FolderUse {
  uint64_t bytes = 0;
  absl::Time changed = absl::InfinitePast();
};
FolderUse MeasureFolder(const std::string& path);

}  // namespace tdock::trainer
