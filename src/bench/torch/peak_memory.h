// Internal to this module.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace tdock::bench {

// Gives freed memory back to the system and lets the peak of the resident set (PeakResidentMemory) start anew. Returns
// what is resident now, in bytes. Unavailable where the system does not let it.
absl::StatusOr<int64_t> RestartPeakMemory();

}  // namespace tdock::bench
