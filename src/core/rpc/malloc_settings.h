// Settings of the process's allocator for streams.
#pragma once

namespace tdock::rpc {

// Lets glibc cache up to 256 MiB of freed memory instead of returning it to the kernel: gRPC allocates memory for
// everything that it receives, and the page faults cost a receiver more than the copies do. It affects the whole
// process, so main() decides, before other threads start.
void KeepFreedMemory();

}  // namespace tdock::rpc
