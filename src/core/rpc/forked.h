// gRPC in a process that was forked from one that had used it.
#pragma once

#include "absl/status/status.h"

namespace tdock::rpc {

// To be called in the child, before anything else of this module, if IsInUse() was false at the fork. gRPC keeps one
// epoll set for the life of a process, even when it is not in use, and after a fork both processes would share it: each
// would get events of the other's connections. This gives the child its own.
absl::Status TakeOwnPollSet();

}  // namespace tdock::rpc
