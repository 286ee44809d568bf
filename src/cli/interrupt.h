// Ctrl-C as a request.
#pragma once

#include <atomic>

namespace tdock::cli {

// From the first call on, the first SIGINT or SIGTERM sets the flag returned instead of ending the process; the next
// one ends it.
const std::atomic<bool>& InterruptFlag();

}  // namespace tdock::cli
