// Signals as requests to a command that works for long.
#pragma once

#include <atomic>

namespace tdock::cli {

// From the first call on, the first SIGINT or SIGTERM sets the returned flag instead of ending the process; the next
// one, of either, ends it.
const std::atomic<bool>& InterruptFlag();

// The signal that has set it; 0: none.
int InterruptSignal();

// While one lives, SIGINT only sets its flag. At most one at a time, and not together with InterruptFlag().
class InterruptCatcher {
 public:
  InterruptCatcher();
  ~InterruptCatcher();
  InterruptCatcher(const InterruptCatcher&) = delete;
  InterruptCatcher& operator=(const InterruptCatcher&) = delete;

  bool caught() const;
};

// From the first call on, SIGUSR1 sets the returned flag, which asks to save.
std::atomic<bool>& SaveFlag();

}  // namespace tdock::cli
