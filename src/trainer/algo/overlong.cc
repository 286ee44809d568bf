#include "trainer/algo/overlong.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace tdock::algo {

double OverlongPenalty(int64_t length, const OverlongOptions& options) {
  TORCH_CHECK(options.buffer > 0 && options.buffer < options.max_length, "the overlong buffer, ", options.buffer,
              " tokens, must be above 0 and below the ", options.max_length, " of the longest answer");
  const auto beyond = static_cast<double>(length - (options.max_length - options.buffer));
  return std::min(-beyond / static_cast<double>(options.buffer) * options.factor, 0.0);
}

}  // namespace tdock::algo
