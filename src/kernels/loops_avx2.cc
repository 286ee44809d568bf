// The loops for AVX2.
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
#pragma GCC target("avx2,fma")
#define TDOCK_VECTOR_BITS 256
namespace tdock::kernels::avx2 {

constexpr char kInstructions[] = "avx2";
constexpr int kTileRows = 6, kNarrow = 2;
constexpr bool kMultipliesPairs = false;

#include "kernels/loops_body.h"

}  // namespace tdock::kernels::avx2
#pragma GCC pop_options

// The same with an instruction that multiplies int8.
#pragma GCC push_options
#pragma GCC target("avx2,fma,avxvnni")
#define TDOCK_MULTIPLIES_FOURS
namespace tdock::kernels::avx2 {
namespace fours {

#include "kernels/products_body.h"

}  // namespace fours

extern const Loops kLoopsOfFours;
const Loops kLoopsOfFours = LoopsWith(fours::MultiplyInt8<float>, fours::MultiplyInt8<BFloat16>);

}  // namespace tdock::kernels::avx2
#pragma GCC pop_options

#endif
