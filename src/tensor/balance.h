// Sets of equal size and nearly equal weight.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tdock {

// Splits the positions of `weights` into `parts` sets of the same size, such that the sums of their weights differ
// little: the largest differencing method of Karmarkar and Karp (1982), begun with sets of one. Heaviest set first;
// deterministic. `weights` must hold a multiple of `parts`, and their sum fit into an int64.
std::vector<std::vector<size_t>> BalanceEqualSizes(std::span<const int64_t> weights, size_t parts);

}  // namespace tdock
