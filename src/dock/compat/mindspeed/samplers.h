// Which of the available rows or groups are handed out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/rng.h"

namespace tdock::mindspeed {

// Splits the positions of `lengths` into sets of `size`, longest first onto the set with the least sum that is not full
// (of equal lengths the later position first; of equal sums the smaller set, then the one begun first). Sets in the
// order in which they fill up, positions ascending. `size` must divide the number of lengths.
std::vector<std::vector<size_t>> BalancedSets(std::span<const int64_t> lengths, size_t size);

// `count` positions below `size`, each with the same chance, in random order.
std::vector<size_t> DrawUniformly(size_t size, size_t count, Rng& rng);

// `count` positions drawn one after another, each with a probability proportional to its weight among those left: by
// the exponential keys of Efraimidis and Spirakis ("Weighted random sampling with a reservoir", 2006). Weights > 0.
std::vector<size_t> DrawByWeight(std::span<const double> weights, size_t count, Rng& rng);

// sigmoid(1 / (|length − target| + 0.001)).
double WeightNear(double length, double target);

}  // namespace tdock::mindspeed
