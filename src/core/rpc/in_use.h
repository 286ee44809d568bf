// Whether gRPC is in use in this process.
#pragma once

namespace tdock::rpc {

// False when this process has no client and no server left: then gRPC has no threads and no open files, and the process
// may fork. Waits for shutdowns in progress.
bool IsInUse();

}  // namespace tdock::rpc
