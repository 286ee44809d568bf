// A progress bar on a terminal, or an occasional line in a log.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"

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

// The progress of a run through its phases, one at a time. Thread-safe; waits for the output only, which its lock keeps
// in order.
//
// On a terminal the last line is redrawn at most ten times a second; the cursor is never hidden. Elsewhere a line is
// written once ten seconds and one percent of the steps have passed since the last one. At the end of each phase one
// line remains.
class Progress {
 public:
  struct Figure {
    std::string name;
    double value = 0;
    std::string note = {};  // behind the value: " (step 3)"
  };
  using Figures = std::vector<Figure>;

  // `clock` must outlive this.
  Progress(ProgressOutput output, Clock& clock) : output_(std::move(output)), clock_(clock) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  // A phase that has not ended is reported as stopped.
  ~Progress();

  // Ends the previous phase, if there is one. `total` is 0 if the number of steps is not known; `done` of them were
  // done before, by another process. `unit` is what one of them is called; empty: the phase has no steps, and leaves no
  // line.
  void Begin(std::string phase, int64_t total, int64_t done = 0, std::string unit = "step") TDOCK_EXCLUDES(mu_);

  // `step` steps of the phase are done. The figures replace those before.
  void Update(int64_t step, const Figures& figures) TDOCK_EXCLUDES(mu_);

  // The work of the moment, such as "validating", until the next Update(). Shown when the line is next written.
  void Doing(std::string what) TDOCK_EXCLUDES(mu_);

  // Shows the time while nothing else is reported: redraws the terminal's line. Elsewhere it writes a line after ten
  // seconds of silence, then after twenty, and so on, until the first step of the phase is done.
  void Tick() TDOCK_EXCLUDES(mu_);

  // Leaves the line "phase: n steps in m:ss, figures", followed by `remark` if there is one.
  void End(absl::string_view remark = "") TDOCK_EXCLUDES(mu_);

 private:
  std::string Bar(int width) const TDOCK_REQUIRES(mu_);
  std::string TerminalLine(int columns) const TDOCK_REQUIRES(mu_);
  std::string PlainLine() const TDOCK_REQUIRES(mu_);
  std::string Counts() const TDOCK_REQUIRES(mu_);
  std::string Times() const TDOCK_REQUIRES(mu_);
  void Draw(int columns, absl::Time now) TDOCK_REQUIRES(mu_);
  void Finish(absl::string_view verdict, absl::string_view remark) TDOCK_REQUIRES(mu_);

  const ProgressOutput output_;
  Clock& clock_;

  Mutex mu_;
  bool running_ TDOCK_GUARDED_BY(mu_) = false;
  bool drawn_ TDOCK_GUARDED_BY(mu_) = false;  // whether the terminal's last line is the bar
  std::string phase_ TDOCK_GUARDED_BY(mu_), unit_ TDOCK_GUARDED_BY(mu_), doing_ TDOCK_GUARDED_BY(mu_);
  int64_t total_ TDOCK_GUARDED_BY(mu_) = 0;
  int64_t done_before_ TDOCK_GUARDED_BY(mu_) = 0;
  int64_t step_ TDOCK_GUARDED_BY(mu_) = 0;
  Figures figures_ TDOCK_GUARDED_BY(mu_);
  absl::Time begun_ TDOCK_GUARDED_BY(mu_);
  absl::Time shown_at_ TDOCK_GUARDED_BY(mu_) = absl::InfinitePast();
  absl::Duration silence_ TDOCK_GUARDED_BY(mu_);  // after which Tick() writes
  int64_t shown_step_ TDOCK_GUARDED_BY(mu_) = 0;
};

// A thread that calls Progress::Tick() every second, for work that reports nothing.
class ProgressTicker {
 public:
  // Both must outlive this.
  ProgressTicker(Progress& progress, Clock& clock);
  ~ProgressTicker();
  ProgressTicker(const ProgressTicker&) = delete;
  ProgressTicker& operator=(const ProgressTicker&) = delete;

 private:
  void Run() TDOCK_EXCLUDES(mu_);

  Progress& progress_;
  Clock& clock_;
  Mutex mu_;
  CondVar changed_;
  bool ended_ TDOCK_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace tdock::trainer
