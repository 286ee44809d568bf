// A connection that can be closed for a while.
#pragma once

#include "absl/time/time.h"

namespace tdock {

// Thread-safe.
class PausableConnection {
 public:
  virtual ~PausableConnection() = default;

  // Closes it; who uses it waits until it is resumed. Returns when nothing of it is left, or at the deadline.
  virtual void Pause(absl::Time deadline) = 0;
  // Makes it again, if that is possible by the deadline. Harmless if it is not paused.
  virtual void Resume(absl::Time deadline) = 0;
};

}  // namespace tdock
