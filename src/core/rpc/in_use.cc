#include "core/rpc/in_use.h"

#include <grpc/grpc.h>

namespace tdock::rpc {

bool IsInUse() {
  if (grpc_is_initialized() == 0) return false;
  // The last of its users may have left the taking down to a thread; one who comes after it does it himself.
  grpc_init();
  grpc_shutdown_blocking();
  return grpc_is_initialized() != 0;
}

}  // namespace tdock::rpc
