// Time limits of tests that hold on a machine under any load.
#pragma once

#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tdock {

// Longest wait for something that must happen. A wait ends as soon as it does, so that only a test that fails takes
// this long.
inline constexpr absl::Duration kPatience = absl::Minutes(5);

// Timeout that must not be what ends a wait. A test that something ends a wait early gives the wait this timeout: if it
// is waited for, the test exceeds its time limit. No clock is read.
inline constexpr absl::Duration kNever = absl::Hours(24);

// True as soon as `condition` is; false after kPatience.
inline bool Eventually(const std::function<bool()>& condition) {
  for (const absl::Time deadline = absl::Now() + kPatience; !condition(); absl::SleepFor(absl::Milliseconds(2))) {
    if (absl::Now() > deadline) return false;
  }
  return true;
}

}  // namespace tdock
