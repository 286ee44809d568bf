// What a render may still use: steps and memory. Internal to this module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tdock::jinja {

// What exceeds a limit is not stopped at once, but remembered: whoever computes something large asks here and ends
// early, and the interpreter, which asks after each expression, fails. Not thread-safe.
class Meter {
 public:
  Meter(int64_t steps, size_t memory_bytes) : steps_limit_(steps), steps_left_(steps), memory_limit_(memory_bytes) {}

  // False once a limit is exceeded.
  bool Spend(int64_t steps) {
    steps_left_ -= steps;
    if (steps_left_ < 0) [[unlikely]]
      Fail("steps", static_cast<uint64_t>(steps_limit_));
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
  void NestTooDeep() { Fail("levels of lists and dicts", 0); }
  void FailOutput(size_t limit) { Fail("bytes of output", limit); }

  bool failed() const { return failed_; }
  absl::Status status() const;

 private:
  void Fail(absl::string_view what, uint64_t limit) {
    if (failed_) return;
    failed_ = true;
    what_ = what;
    limit_ = limit;
  }

  const int64_t steps_limit_;
  int64_t steps_left_;
  const size_t memory_limit_;
  size_t held_ = 0;
  bool failed_ = false;
  absl::string_view what_ = {};
  uint64_t limit_ = 0;
};

}  // namespace tdock::jinja
