// A progress bar on a terminal, or an occasional line in a log.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/clock.h"

namespace tdock::trainer {

// The output of a Progress.
struct ProgressOutput {
  // Writes to the user at once. It gets whole lines, or the last line redrawn.
  std::function<void(absl::string_view)> write;
  // Columns of the terminal, queried at each drawing; 0 if the output is not a terminal.
  std::function<int()> columns;
  // Whether the bar may use characters beyond ASCII.
  bool unicode = false;

  static ProgressOutput StandardError();
};

// The progress of a run through its phases, one at a time. Not thread-safe; never waits.
//
// On a terminal the last line is redrawn at most ten times a second; the cursor is never hidden. Elsewhere a line is
// written once ten seconds and one percent of the steps have passed since the last one. At the end of each phase one
// line remains.
class Progress {
 public:
  using Figures = std::vector<std::pair<std::string, double>>;

  // `clock` must outlive this.
  Progress(ProgressOutput output, Clock& clock) : output_(std::move(output)), clock_(clock) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  // A phase that has not ended is reported as stopped.
  ~Progress();

  // Ends the previous phase, if there is one. `total` is 0 if the number of steps is not known; `done` of them were
  // done before, by another process. `unit` is what one of them is called.
  void Begin(std::string phase, int64_t total, int64_t done = 0, std::string unit = "step");

  // `step` steps of the phase are done. Figures are shown in the order in which they first appeared; one that is not
  // named keeps its last value.
  void Update(int64_t step, const Figures& figures);

  // Leaves the line "phase: n steps in m:ss, figures", followed by `remark` if there is one.
  void End(absl::string_view remark = "");

 private:
  std::string Bar(int width) const;
  std::string TerminalLine(int columns) const;
  std::string PlainLine() const;
  std::string Counts() const;
  std::string Times() const;
  void Finish(absl::string_view verdict, absl::string_view remark);

  const ProgressOutput output_;
  Clock& clock_;

  bool running_ = false;
  bool drawn_ = false;  // whether the terminal's last line is the bar
  std::string phase_, unit_;
  int64_t total_ = 0;
  int64_t done_before_ = 0;
  int64_t step_ = 0;
  Figures figures_;
  absl::Time begun_;
  absl::Time shown_at_ = absl::InfinitePast();
  int64_t shown_step_ = 0;
};

}  // namespace tdock::trainer
