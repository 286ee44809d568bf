// The memory of this process, and of the machine that it runs on.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "core/base/env.h"

namespace tdock {

// The resident set of this process, in bytes.
absl::StatusOr<int64_t> ResidentMemory(Env& env);

// The largest resident set that this process ever had, in bytes.
absl::StatusOr<int64_t> PeakResidentMemory(Env& env);

// How large the resident set of this process, which is `resident` bytes now, can become: as far as the machine has
// memory, and the limits of its control group allow. Nothing if the system tells neither.
std::optional<int64_t> AvailableMemory(Env& env, int64_t resident);

}  // namespace tdock
