// What the stages of a run did when.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"

namespace tdock::trainer {

// A stage worked, or waited for rows, from one time to another.
struct StageSpan {
  std::string stage;
  bool works = false;
  absl::Time begin, end;
  int64_t rows = 0;  // that it worked on
};

// Thread-safe; each stage is told of by one thread at a time.
class Timeline {
 public:
  // The clock must outlive it.
  explicit Timeline(Clock& clock) : clock_(clock) {}

  // The stage begins to work, or to wait; which ends what it did before.
  // `which` says for people which rows they are.
  void Work(const std::string& stage, int64_t rows, std::string which = "") TDOCK_EXCLUDES(mu_) {
    Begin(stage, true, rows, std::move(which));
  }
  void Wait(const std::string& stage) TDOCK_EXCLUDES(mu_) { Begin(stage, false, 0, ""); }
  // It works on, and gets on.
  void Progress(const std::string& stage) TDOCK_EXCLUDES(mu_);
  // It is between two of them, or through.
  void End(const std::string& stage) TDOCK_EXCLUDES(mu_);

  // Seconds that a stage spent since the last call.
  struct Times {
    double working = 0, waiting = 0;
  };
  struct Taken {
    // What has ended, and the part until now of what has not, in the order of their ends. Spans of one stage that
    // follow one another and are short are put together, so that there are at most `most_spans` of a stage.
    std::vector<StageSpan> spans;
    std::map<std::string, Times> times;
  };
  // What was not yet taken.
  Taken Take(size_t most_spans = 50) TDOCK_EXCLUDES(mu_);

  // What a stage does, whether some of it was taken or not.
  struct Doing {
    bool works = false;
    int64_t rows = 0;
    std::string which = {};
    absl::Time since = {};
    absl::Time progress = {};  // the last sign of it
  };
  std::map<std::string, Doing> Now() const TDOCK_EXCLUDES(mu_);

 private:
  void Begin(const std::string& stage, bool works, int64_t rows, std::string which) TDOCK_EXCLUDES(mu_);
  void Close(const std::string& stage, absl::Time now) TDOCK_REQUIRES(mu_);

  Clock& clock_;
  mutable Mutex mu_;
  std::map<std::string, StageSpan> open_ TDOCK_GUARDED_BY(mu_);  // the part that was not taken
  std::map<std::string, Doing> doing_ TDOCK_GUARDED_BY(mu_);     // of the same stages
  std::map<std::string, std::vector<StageSpan>> ended_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::trainer
