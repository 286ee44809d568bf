#include "bench/torch/peak_memory.h"

#include <malloc.h>

#include <fstream>

#include "core/base/process_memory.h"

namespace tdock::bench {

absl::StatusOr<int64_t> RestartPeakMemory() {
  ::malloc_trim(0);
  if (!(std::ofstream("/proc/self/clear_refs") << "5" << std::flush)) {
    return absl::UnavailableError("cannot write to /proc/self/clear_refs");
  }
  return ResidentMemory(Env::Real());
}

}  // namespace tdock::bench
