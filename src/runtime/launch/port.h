// TCP ports of this machine.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tdock::runtime {

// One that nobody listens at, on any address of this machine. Another process may take it before it is used.
absl::StatusOr<int> FreePort();
// InvalidArgument, with what would be right, if somebody listens at it or this user may not.
absl::Status CheckPort(int port);

}  // namespace tdock::runtime
