#include "bench/torch/peak_memory.h"

#include <malloc.h>

#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tdock::bench {
namespace {

// A number of /proc/self/status, in bytes.
absl::StatusOr<double> MemoryOfThisProcess(absl::string_view key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    absl::string_view rest = line;
    double kib = 0;
    if (absl::ConsumePrefix(&rest, key) && absl::ConsumePrefix(&rest, ":") && absl::ConsumeSuffix(&rest, " kB") &&
        absl::SimpleAtod(rest, &kib)) {
      return kib * 1024;
    }
  }
  return absl::UnavailableError(absl::StrCat("/proc/self/status has no ", key));
}

}  // namespace

absl::StatusOr<double> RestartPeakMemory() {
  ::malloc_trim(0);
  if (!(std::ofstream("/proc/self/clear_refs") << "5" << std::flush)) {
    return absl::UnavailableError("cannot write to /proc/self/clear_refs");
  }
  return MemoryOfThisProcess("VmRSS");
}

absl::StatusOr<double> PeakMemory() { return MemoryOfThisProcess("VmHWM"); }

}  // namespace tdock::bench
