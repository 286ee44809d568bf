// Which records each phase of a training gets.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock::data {

// "2,4,4" → {2, 4, 4}. InvalidArgument unless it is at least one number, each finite and ≥ 0, with a sum > 0.
absl::StatusOr<std::vector<double>> ParseShares(absl::string_view shares);

// Phase i gets [b_i, b_{i+1}) of `size` records in shuffled order, by DeepSpeed-Chat's rule: with p_i = share_i / Σ
// shares, b_0 = 0 and b_{i+1} = b_i + p_i·size rounded half to even; then b_last − size is subtracted from every b_i, i
// ≥ 1, and negative results become 0. `shares` as ParseShares() gives them.
std::vector<int64_t> PhaseBoundaries(int64_t size, std::span<const double> shares);

// The indexes 0 … size-1 that phase `phase` gets, in an order shuffled by the seed.
std::vector<int64_t> PhaseIndexes(int64_t size, std::span<const double> shares, size_t phase, uint64_t seed);

}  // namespace tdock::data
