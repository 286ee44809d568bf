#include "core/rpc/malloc_settings.h"

#include <malloc.h>

namespace tdock::rpc {

void KeepFreedMemory() {
#ifdef __GLIBC__
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the largest that glibc takes
#endif
}

}  // namespace tdock::rpc
