#include "kernels/loops.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TDOCK_KERNELS_FOR_X86
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#ifdef TDOCK_KERNELS_FOR_X86

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#define TDOCK_VECTOR_BITS 512
namespace tdock::kernels::avx512 {
constexpr char kInstructions[] = "avx512";
constexpr int kTile = 16;
constexpr int kWidth = 16, kTileRows = 12, kNarrow = 2;
constexpr bool kMultipliesPairs = false;
// clang-format off
#include "kernels/lanes_body.h"
#include "kernels/activations_body.h"
#include "kernels/attention_body.h"
#include "kernels/log_probs_body.h"
#include "kernels/panels_body.h"
#include "kernels/products_body.h"
#include "kernels/rows_body.h"
#include "kernels/loops_body.h"
// clang-format on
}  // namespace tdock::kernels::avx512
#undef TDOCK_VECTOR_BITS
#pragma GCC pop_options

#define TDOCK_MULTIPLIES_PAIRS
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")
#define TDOCK_VECTOR_BITS 512
namespace tdock::kernels::avx512_bf16 {
constexpr char kInstructions[] = "avx512_bf16";
constexpr int kTile = 16;
constexpr int kWidth = 16, kTileRows = 12, kNarrow = 2;
constexpr bool kMultipliesPairs = true;
// clang-format off
#include "kernels/lanes_body.h"
#include "kernels/attention_body.h"
#include "kernels/log_probs_body.h"
#include "kernels/panels_body.h"
#include "kernels/products_body.h"
#include "kernels/rows_body.h"
#include "kernels/loops_body.h"
// clang-format on
}  // namespace tdock::kernels::avx512_bf16
#undef TDOCK_VECTOR_BITS
#pragma GCC pop_options
#undef TDOCK_MULTIPLIES_PAIRS

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define TDOCK_VECTOR_BITS 256
namespace tdock::kernels::avx2 {
constexpr char kInstructions[] = "avx2";
constexpr int kTile = 4;
constexpr int kWidth = 8, kTileRows = 6, kNarrow = 2;
constexpr bool kMultipliesPairs = false;
// clang-format off
#include "kernels/lanes_body.h"
#include "kernels/activations_body.h"
#include "kernels/attention_body.h"
#include "kernels/log_probs_body.h"
#include "kernels/panels_body.h"
#include "kernels/products_body.h"
#include "kernels/rows_body.h"
#include "kernels/loops_body.h"
// clang-format on
}  // namespace tdock::kernels::avx2
#undef TDOCK_VECTOR_BITS
#pragma GCC pop_options

#endif

#define TDOCK_VECTOR_BITS 0
namespace tdock::kernels::baseline {
constexpr char kInstructions[] = "baseline";
constexpr int kTile = 4;
constexpr int kWidth = 4, kTileRows = 3, kNarrow = 4;
constexpr bool kMultipliesPairs = false;
// clang-format off
#include "kernels/lanes_body.h"
#include "kernels/activations_body.h"
#include "kernels/attention_body.h"
#include "kernels/log_probs_body.h"
#include "kernels/panels_body.h"
#include "kernels/products_body.h"
#include "kernels/rows_body.h"
#include "kernels/loops_body.h"
// clang-format on
}  // namespace tdock::kernels::baseline
#undef TDOCK_VECTOR_BITS

namespace tdock::kernels {

std::vector<const Loops*> AllLoops() {
  std::vector<const Loops*> all;
#ifdef TDOCK_KERNELS_FOR_X86
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx512 && has_avx2) all.push_back(&avx512::kLoops);
  if (has_avx512 && has_avx2 && __builtin_cpu_supports("avx512bf16")) {
    // AMD's processors multiply pairs twice as fast as they multiply float32, Intel's half as fast.
    all.insert(__builtin_cpu_is("amd") ? all.begin() : all.end(), &avx512_bf16::kLoops);
  }
  if (has_avx2) all.push_back(&avx2::kLoops);
#endif
  all.push_back(&baseline::kLoops);
  return all;
}

const Loops& BestLoops() {
  static const Loops& best = *AllLoops().front();
  return best;
}

}  // namespace tdock::kernels
