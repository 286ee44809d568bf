#include "trainer/reward/external/patience.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"

namespace tdock::reward {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(100);  // between two looks at whether to stop

}  // namespace

absl::Status Patience::Check(absl::string_view what) const {
  if (check_stop) TDOCK_RETURN_IF_ERROR(check_stop());
  if (clock.Now() < deadline) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("the time ran out while waiting for ", what));
}

absl::Status Patience::Await(int descriptor, short events, absl::string_view what) const {
  for (;;) {
    TDOCK_RETURN_IF_ERROR(Check(what));
    const absl::Duration left = std::min(deadline - clock.Now(), kLook);
    pollfd watched{.fd = descriptor, .events = events, .revents = 0};
    const int ready = poll(&watched, 1, static_cast<int>(std::max<int64_t>(absl::ToInt64Milliseconds(left), 0)) + 1);
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, absl::StrCat("cannot wait for ", what));
  }
}

absl::Status Patience::SleepUntil(absl::Time time, absl::string_view what) const {
  Mutex mu;
  CondVar never;
  while (clock.Now() < time) {
    TDOCK_RETURN_IF_ERROR(Check(what));
    const absl::Time look = std::min({clock.Now() + kLook, time, deadline});
    MutexLock lock(mu);
    clock.Wait(never, mu, look);
  }
  return absl::OkStatus();
}

}  // namespace tdock::reward
