// What the folder of a run says, read as it is written, for pages that show it.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/env.h"
#include "trainer/run_log/run_summary.h"
#include "trainer/run_page/bucket_series.h"
#include "trainer/run_page/file_tail.h"
#include "trainer/run_page/metric_lines.h"

namespace tdock::trainer {

// Follows one run, whether it is at work or has ended. Its memory is bounded whatever the number of steps: about 30 KiB
// for each metric. Not thread-safe; never waits for the run.
class RunFollower {
 public:
  // `env` and `sequence` must outlive it. `name` is what pages call the run.
  RunFollower(Env& env, std::string path, std::string name, Sequence& sequence);

  const std::string& name() const { return name_; }
  const std::string& path() const { return path_; }
  RunState state() const { return state_; }

  // Takes what is new in the folder, of each log at most `most_bytes`. True if there is more to read at once. What
  // cannot be read is told by the page, and tried again.
  bool Poll(size_t most_bytes);

  // Whether anything has changed after event `seen`.
  bool HasNewsSince(uint64_t seen) const { return changed_ > seen; }

  // What a page that has seen everything up to event `seen` has to know: {"run", "reset": whether it must forget what
  // it knows, "head"?, "read": share of the logs, "unreadable", "problem", "seconds": of the run or null, "changed":
  // seconds since 1970 or null, "phases": [{"name", "first_step", "last_step", "steps": lists, "series": [{"tag", "x":
  // index into steps, and what BucketSeries::Since() has}, …]}, …], "samples": {"keys": of all groups in their order,
  // "groups": [[key, samples], …]}?, "lanes": names of stages, "left_out": whether there were earlier spans, "spans":
  // [[lane, step, 1 if it worked, begin, end, rows], …]}. Of series, samples and spans only what has changed.
  LogRecord Since(uint64_t seen) const;

  // A line of a list: {"name", "state", "recipe", "phase", "step" or null, "steps" or null, "changed", "read",
  // "problem", "last": {metric: its last value, …} for what tells most of a run}.
  LogRecord Summary() const;
  // Of all phases, the series of the metric as Since() has them, under "phases"; nothing if they have not changed.
  std::optional<LogRecord> MetricSince(const std::string& tag, uint64_t seen) const;
  std::vector<std::string> Tags() const;

 private:
  struct Tag {
    std::string name;
    BucketSeries series;
  };
  struct Phase {
    std::string name;
    int64_t first_step = std::numeric_limits<int64_t>::max(), last_step = 0;
    uint64_t changed = 0;
    std::vector<Tag> tags = {};  // in the order of their first appearance
    std::map<std::string, size_t, std::less<>> index = {};
  };
  struct SampleGroup {
    std::string key;
    uint64_t changed = 0;
    std::vector<LogRecord> samples = {};
  };
  struct Span {
    uint64_t number = 0;
    size_t lane = 0;
    int64_t step = 0;
    bool works = false;
    double begin = 0, end = 0, rows = 0;
  };
  class MetricTaker;
  class SpanTaker;

  void Forget();
  void PollHead();
  bool PollLog(FileTail& tail, size_t most_bytes, void (RunFollower::*take)(std::string));
  void TakeMetrics(std::string lines);
  void TakeSamples(std::string lines);
  void TakeSpans(std::string lines);
  void SetProblem(std::string problem);
  double ReadShare() const;
  LogRecord Head() const;
  LogRecord PhasesSince(uint64_t seen) const;
  LogRecord SamplesSince(uint64_t seen) const;

  Env& env_;
  const std::string path_, name_;
  Sequence& sequence_;
  FileTail metrics_, samples_log_, timeline_;
  LineReader reader_;

  uint64_t changed_ = 0, begun_ = 0, head_changed_ = 0;
  RunState state_ = RunState::kFailed;
  std::string config_yaml_;
  std::map<std::string, std::string> config_;
  absl::Time config_time_ = absl::InfiniteFuture();  // not read yet
  absl::Time log_time_ = absl::InfinitePast();
  std::string problem_, trouble_;  // that of the last poll, and of this one
  int64_t unreadable_ = 0;
  bool restarted_ = false;

  std::vector<Phase> phases_;
  std::deque<SampleGroup> samples_;
  std::vector<std::string> lanes_;
  std::deque<Span> spans_;
  bool left_out_ = false;
  double seconds_ = -1;  // of the last span
};

}  // namespace tdock::trainer
