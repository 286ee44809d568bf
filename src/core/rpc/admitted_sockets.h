// The sockets that gRPC was given. For this module only.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "core/base/mutex.h"

namespace tdock::rpc {

// gRPC does not end a connection to which it writes for as long as its client reads nothing, so that a server would
// wait for such a client when it ends. This cuts them. Knows sockets without holding them. Thread-safe.
class AdmittedSockets {
 public:
  // Before gRPC has it.
  void Add(int fd) TDOCK_EXCLUDES(mu_);
  // Those that are still there.
  void CutAll() TDOCK_EXCLUDES(mu_);

 private:
  Mutex mu_;
  // What the system calls the socket that had the descriptor last: the descriptor may belong to another by now.
  absl::flat_hash_map<int, uint64_t> cookies_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::rpc
