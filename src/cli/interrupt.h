// Ctrl-C as a request to stop.
#pragma once

#include <atomic>

namespace tdock::cli {

// From the first call on, the first SIGINT or SIGTERM sets the returned flag instead of ending the process; the next
// one ends it.
const std::atomic<bool>& InterruptFlag();

}  // namespace tdock::cli
