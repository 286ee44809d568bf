// The addresses of a host, within a time.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/reward/external/patience.h"

namespace tdock::reward {

struct HostAddress {
  sockaddr_storage address;
  socklen_t size;
};

// At least one address of a host, which is a name or an address. The system's own look-up knows no deadline: one that
// takes too long is left to a thread of its own, which ends with it. Unavailable, DeadlineExceeded, or the error of the
// stop check.
absl::StatusOr<std::vector<HostAddress>> LookUpHost(const std::string& host, int port, const Patience& patience);

}  // namespace tdock::reward
