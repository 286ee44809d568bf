// Whether anything of gRPC is in this process.
#pragma once

namespace tdock::rpc {

// False when no client and no server of this process is left: then gRPC has no threads and no files, and the process
// may fork. Waits for what is being taken down.
bool IsInUse();

}  // namespace tdock::rpc
