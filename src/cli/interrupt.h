// Signals as requests to a command that works for long.
#pragma once

#include <atomic>

namespace tdock::cli {

// From the first call on, the first SIGINT or SIGTERM sets the returned flag instead of ending the process; the next
// one, of either, ends it.
const std::atomic<bool>& InterruptFlag();

// The signal that has set it; 0: none.
int InterruptSignal();

// From the first call on, SIGUSR1 sets the returned flag, which asks to save.
std::atomic<bool>& SaveFlag();

}  // namespace tdock::cli
