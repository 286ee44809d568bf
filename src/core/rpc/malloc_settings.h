// How the process's allocator treats what streams leave behind.
#pragma once

namespace tdock::rpc {

// Lets glibc keep up to 256 MiB of freed memory instead of giving it back to the kernel: gRPC allocates what it
// receives anew, and the page faults cost a receiver more than the copies do. It concerns the whole process, so main()
// decides, before its threads start.
void KeepFreedMemory();

}  // namespace tdock::rpc
