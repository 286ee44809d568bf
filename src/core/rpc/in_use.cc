#include "core/rpc/in_use.h"

#include <grpc/grpc.h>

namespace tdock::rpc {

bool IsInUse() {
  if (grpc_is_initialized() == 0) return false;
  // The last user may have left the shutdown to a thread; a later one does it itself.
  grpc_init();
  grpc_shutdown_blocking();
  return grpc_is_initialized() != 0;
}

}  // namespace tdock::rpc
