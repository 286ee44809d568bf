// How long a call may wait.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/clock.h"

namespace tdock::reward {

// A deadline, and what fails if one has to stop before it, which is asked ten times a second. As thread-safe as
// `check_stop`.
struct Patience {
  Clock& clock;
  absl::Time deadline;
  std::function<absl::Status()> check_stop = {};

  // OK while there is time. The error of `check_stop`; DeadlineExceeded, saying that it was waited for `what`.
  absl::Status Check(absl::string_view what) const;
  // Waits until the descriptor is ready for `events` (POLLIN, POLLOUT). Errors as above.
  absl::Status Await(int descriptor, short events, absl::string_view what) const;
  // Waits until a time, or as long as there is time. Errors as above.
  absl::Status SleepUntil(absl::Time time, absl::string_view what) const;
};

}  // namespace tdock::reward
