// gRPC in a process that was forked from one that had used it.
#pragma once

#include "absl/status/status.h"

namespace tdock::rpc {

// To be called in the child, before anything else of this module, if IsInUse() was false at the fork. gRPC keeps one
// poll set for as long as a process lives, also when it is not in use, and a fork makes both processes share it: each
// would be told of the other's connections. This gives the child one of its own.
absl::Status TakeOwnPollSet();

}  // namespace tdock::rpc
