// The loops for any processor.
#include "kernels/loops.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#define TDOCK_VECTOR_BITS 0
namespace tdock::kernels::baseline {

constexpr char kInstructions[] = "portable";
constexpr int kTileRows = 3, kNarrow = 4;
constexpr bool kMultipliesPairs = false;

#include "kernels/loops_body.h"

}  // namespace tdock::kernels::baseline
