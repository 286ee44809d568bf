// The loops for AVX-512 with products of bfloat16 and int8. Processors with the former have the latter.
#include "kernels/loops.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni,avx2,fma")
#define TDOCK_VECTOR_BITS 512
#define TDOCK_MULTIPLIES_PAIRS
#define TDOCK_MULTIPLIES_FOURS
namespace tdock::kernels::avx512_bf16 {

constexpr char kInstructions[] = "avx512_bf16";
constexpr int kTileRows = 12, kNarrow = 2;
constexpr bool kMultipliesPairs = true;

#include "kernels/loops_body.h"

}  // namespace tdock::kernels::avx512_bf16
#pragma GCC pop_options

#endif
