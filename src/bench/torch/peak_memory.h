// The resident memory of this process. Internal to this module. Unavailable where /proc does not tell it.
#pragma once

#include "absl/status/statusor.h"

namespace tdock::bench {

// Gives freed memory back to the system and lets the peak start anew. Returns what is resident now, in bytes.
absl::StatusOr<double> RestartPeakMemory();

// The most that was resident since then, in bytes.
absl::StatusOr<double> PeakMemory();

}  // namespace tdock::bench
