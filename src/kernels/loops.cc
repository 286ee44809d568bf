#include "kernels/loops.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/limits.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TDOCK_KERNELS_FOR_X86
#include <cpuid.h>
#endif

namespace tdock::kernels {

// Each is in a file of its own, loops_….cc.
#ifdef TDOCK_KERNELS_FOR_X86
namespace avx512 {
extern const Loops kLoops, kLoopsOfFours;
}
namespace avx512_bf16 {
extern const Loops kLoops;
}
namespace avx2 {
extern const Loops kLoops, kLoopsOfFours;
}
#endif
namespace baseline {
extern const Loops kLoops;
}

std::vector<const Loops*> AllLoops() {
  std::vector<const Loops*> all;
#ifdef TDOCK_KERNELS_FOR_X86
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_fours = __builtin_cpu_supports("avx512vnni");
  if (has_avx512 && has_avx2 && has_fours) all.push_back(&avx512::kLoopsOfFours);
  if (has_avx512 && has_avx2) all.push_back(&avx512::kLoops);
  if (has_avx512 && has_avx2 && has_fours && __builtin_cpu_supports("avx512bf16")) {
    // AMD's processors multiply pairs twice as fast as they multiply float32, Intel's half as fast.
    all.insert(__builtin_cpu_is("amd") ? all.begin() : all.end(), &avx512_bf16::kLoops);
  }
  if (has_avx2 && __builtin_cpu_supports("avxvnni")) all.push_back(&avx2::kLoopsOfFours);
  if (has_avx2) all.push_back(&avx2::kLoops);
#endif
  all.push_back(&baseline::kLoops);
  return all;
}

bool HasWideMultipliersOfAmd() {
#ifdef TDOCK_KERNELS_FOR_X86
  static const bool has = [] {
    constexpr unsigned kZen5 = 26;  // its family. The bit for this width (leaf 8000001A) is hidden from some guests
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__builtin_cpu_is("amd") || __get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return false;
    return (eax >> 8 & 0xF) + (eax >> 20 & 0xFF) >= kZen5;
  }();
  return has;
#else
  return false;
#endif
}

namespace {

std::atomic<const Loops*>& InUse() {
  static std::atomic<const Loops*> in_use = AllLoops().front();
  return in_use;
}

}  // namespace

const Loops& LoopsInUse() { return *InUse().load(std::memory_order_relaxed); }

std::vector<std::string> AllInstructions() {
  std::vector<std::string> names;
  for (const Loops* loops : AllLoops()) names.emplace_back(loops->instructions);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

absl::Status UseInstructions(absl::string_view name) {
  for (const Loops* loops : AllLoops()) {
    if (name != kBestInstructions && name != loops->instructions) continue;
    InUse() = loops;
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("this processor has no ", name, "; it has ", absl::StrJoin(AllInstructions(), ", ")));
}

int64_t MultiplyAndAdd() {
  constexpr int64_t kTimes = 1'000'000;
  return LoopsInUse().multiply_and_add(kTimes);
}

float Sum(const float* x, int64_t size) { return LoopsInUse().sum(x, size); }

const char* Instructions() { return LoopsInUse().instructions; }

}  // namespace tdock::kernels
