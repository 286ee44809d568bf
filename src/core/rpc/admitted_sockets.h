// The sockets that were handed to gRPC. For this module only.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "core/base/mutex.h"

namespace tdock::rpc {

// gRPC does not end a connection that it is writing to while the client reads nothing, so a server that shuts down
// would wait for such a client. This resets those connections. Knows the sockets without owning them. Thread-safe.
class AdmittedSockets {
 public:
  // Before gRPC gets the socket.
  void Add(int fd) TDOCK_EXCLUDES(mu_);
  // Those that are still open.
  void CutAll() TDOCK_EXCLUDES(mu_);

 private:
  Mutex mu_;
  // The kernel's cookie of the socket that last had the descriptor, which may belong to another socket by now.
  absl::flat_hash_map<int, uint64_t> cookies_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::rpc
