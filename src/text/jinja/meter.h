// The limits of a render: time, steps and memory. Internal to this module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"

namespace tdock::jinja {

// What exceeds a limit is not stopped at once, but remembered: whoever computes something large asks here and ends
// early, and the interpreter, which asks after each expression, fails. The same goes for an error of the stop check,
// which is polled with the first steps and every few thousand. Not thread-safe.
class Meter {
 public:
  Meter(int64_t steps, size_t memory_bytes, StopCheck stop)
      : steps_limit_(steps), steps_left_(steps), memory_limit_(memory_bytes), stop_(std::move(stop)) {}

  // False once a limit is exceeded.
  bool Spend(int64_t steps) {
    steps_left_ -= steps;
    if (steps_left_ < poll_at_) [[unlikely]]
      Poll();
    return !failed_;
  }
  // The steps of making or reading so many bytes.
  bool SpendBytes(size_t bytes) { return Spend(static_cast<int64_t>(bytes / 64)); }
  // Whether so many bytes more may be held. To be asked before a text or list is made
  // that is much larger than what it is made from.
  bool MayHold(size_t bytes) {
    if (bytes > memory_limit_ - (held_ < memory_limit_ ? held_ : memory_limit_)) {
      Fail("bytes of memory", memory_limit_);
      return false;
    }
    return !failed_;
  }
  void Hold(size_t bytes) {
    held_ += bytes;
    if (held_ > memory_limit_) [[unlikely]]
      Fail("bytes of memory", memory_limit_);
  }
  void LetGo(size_t bytes) { held_ -= bytes; }
  void NestTooDeep() { Fail(kLevels, 0); }
  void FailOutput(size_t limit) { Fail("bytes of output", limit); }

  bool failed() const { return failed_; }
  absl::Status status() const;
  bool stopped() const { return !stop_status_.ok(); }

 private:
  static constexpr int64_t kStepsBetweenPolls = 1 << 14;
  static constexpr absl::string_view kLevels = "levels of lists and dicts";

  void Poll();
  void Fail(absl::string_view what, uint64_t limit) {
    if (failed_) return;
    failed_ = true;
    what_ = what;
    limit_ = limit;
  }

  const int64_t steps_limit_;
  int64_t steps_left_;
  int64_t poll_at_ = steps_limit_;  // below which Poll() is called
  const size_t memory_limit_;
  const StopCheck stop_;
  absl::Status stop_status_;
  size_t held_ = 0;
  bool failed_ = false;
  absl::string_view what_ = {};
  uint64_t limit_ = 0;
};

}  // namespace tdock::jinja
