// Sets of equal size and nearly equal weight.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/numeric/int128.h"

namespace tdock {

// Splits the positions of `weights` into `parts` sets of the same size with nearly equal sums: the largest differencing
// method of Karmarkar and Karp (1982), begun with sets of one. Heaviest set first; deterministic. The number of weights
// must be a multiple of `parts`, and their sum must fit the type.
std::vector<std::vector<size_t>> BalanceEqualSizes(std::span<const int64_t> weights, size_t parts);
std::vector<std::vector<size_t>> BalanceEqualSizes(std::span<const absl::int128> weights, size_t parts);

}  // namespace tdock
