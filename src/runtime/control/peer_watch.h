// When the other side of a connection was last heard of. For this module only.
#pragma once

#include <atomic>
#include <chrono>

#include "absl/time/time.h"

namespace tdock::runtime {

// Thread-safe.
class PeerWatch {
 public:
  void Heard() { last_ = Now(); }
  absl::Duration silent() const { return absl::Nanoseconds(Now() - last_); }

 private:
  // A clock that also stands still while the machine sleeps, so that this is no silence of the other side.
  static int64_t Now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  std::atomic<int64_t> last_ = Now();
};

}  // namespace tdock::runtime
