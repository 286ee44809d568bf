#include "kernels/loops.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TDOCK_KERNELS_FOR_X86
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

// Vectors are passed only between functions that are compiled for the same instructions. To the end of the file: inline
// functions are compiled there.
#pragma GCC diagnostic ignored "-Wpsabi"

#ifdef TDOCK_KERNELS_FOR_X86

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
namespace tdock::kernels::avx512 {
constexpr char kInstructions[] = "avx512";
constexpr int kTile = 16;
#include "kernels/lanes_body.h"
// (in this order)
#include "kernels/attention_body.h"
#include "kernels/loops_body.h"
}  // namespace tdock::kernels::avx512
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace tdock::kernels::avx2 {
constexpr char kInstructions[] = "avx2";
constexpr int kTile = 4;
#include "kernels/lanes_body.h"
// (in this order)
#include "kernels/attention_body.h"
#include "kernels/loops_body.h"
}  // namespace tdock::kernels::avx2
#pragma GCC pop_options

#endif

namespace tdock::kernels::baseline {
constexpr char kInstructions[] = "baseline";
constexpr int kTile = 4;
#include "kernels/lanes_body.h"
// (in this order)
#include "kernels/attention_body.h"
#include "kernels/loops_body.h"
}  // namespace tdock::kernels::baseline

namespace tdock::kernels {

const Loops& BestLoops() {
#ifdef TDOCK_KERNELS_FOR_X86
  static const Loops& best = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
                                 ? avx512::kLoops
                             : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? avx2::kLoops
                                                                                               : baseline::kLoops;
  return best;
#else
  return baseline::kLoops;
#endif
}

}  // namespace tdock::kernels
