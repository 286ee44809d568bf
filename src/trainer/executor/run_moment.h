// Where a run is, kept for who asks while it is at work.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "tdock/dock.h"
#include "trainer/executor/run_explanation.h"
#include "trainer/executor/timeline.h"

namespace tdock::trainer {

// Thread-safe.
class RunMoment {
 public:
  // The clock must outlive it.
  explicit RunMoment(Clock& clock) : clock_(clock), since_(clock.Now()) {}

  // The run is in a step, and begins with what `phase` says: "validating".
  void Enter(int64_t step, std::string phase) TDOCK_EXCLUDES(mu_);
  // The figures of a step that is through, of which speed and staleness are kept.
  void NoteStep(const std::map<std::string, double>& metrics) TDOCK_EXCLUDES(mu_);
  // What it was last told.
  RunExplanation Now() const TDOCK_EXCLUDES(mu_);

 private:
  Clock& clock_;
  mutable Mutex mu_;
  int64_t step_ TDOCK_GUARDED_BY(mu_) = 0;
  std::string phase_ TDOCK_GUARDED_BY(mu_) = "beginning";
  absl::Time since_ TDOCK_GUARDED_BY(mu_);
  std::optional<double> tokens_per_second_ TDOCK_GUARDED_BY(mu_), staleness_mean_ TDOCK_GUARDED_BY(mu_),
      staleness_max_ TDOCK_GUARDED_BY(mu_);
};

// A stage of the run, and where its consumer is.
struct ExplainedStage {
  std::string name = {};
  std::string partition = {};
  bool external = false;  // another process carries it out
};

// What the run is doing: the moment, the stages in this order, and after them what else the timeline tells of. Calls
// the dock, but waits for nothing else.
RunExplanation ExplainRun(const RunMoment& moment, const Timeline& timeline, Dock& dock,
                          std::span<const ExplainedStage> stages, Clock& clock);

}  // namespace tdock::trainer
