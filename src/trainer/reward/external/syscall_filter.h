// The system calls that code under test may make.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tdock::reward {

// A filter (cBPF, as of seccomp_export_bpf) that refuses with EPERM: new processes (but not threads), sockets, tracing
// and reading other processes, namespaces and mounts, memory that no limit counts (memfd_create, System V), io_uring,
// BPF, keys, modules, and setting clocks. Internal if libseccomp fails.
absl::StatusOr<std::string> MakeSyscallFilter();

}  // namespace tdock::reward
