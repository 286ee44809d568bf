#include "data/phase_split.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::data {

absl::StatusOr<std::vector<double>> ParseShares(absl::string_view shares) {
  std::vector<double> parsed;
  double sum = 0;
  for (const absl::string_view part : absl::StrSplit(shares, ',')) {
    double share = 0;
    if (!absl::SimpleAtod(part, &share) || !std::isfinite(share) || share < 0) {
      return absl::InvalidArgumentError(absl::StrCat("\"", EscapeForMessage(shares),
                                                     "\" is not a list of proportions such as ", "\"2,4,4\": \"",
                                                     EscapeForMessage(part), "\" is not a number ≥ 0"));
    }
    parsed.push_back(share);
    sum += share;
  }
  if (!(sum > 0) || !std::isfinite(sum)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the shares \"", EscapeForMessage(shares), "\" do not have a positive sum"));
  }
  return parsed;
}

std::vector<int64_t> PhaseBoundaries(int64_t size, std::span<const double> shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  TDOCK_CHECK(size >= 0 && sum > 0, "shares have a sum above 0");
  std::vector<int64_t> boundaries = {0};
  for (const double share : shares) {
    // The rounding mode is half to even.
    boundaries.push_back(boundaries.back() + std::llrint(share / sum * static_cast<double>(size)));
  }
  const int64_t excess = boundaries.back() - size;
  for (size_t i = 1; i < boundaries.size(); ++i) boundaries[i] = std::max<int64_t>(boundaries[i] - excess, 0);
  return boundaries;
}

std::vector<int64_t> PhaseIndexes(int64_t size, std::span<const double> shares, size_t phase, uint64_t seed) {
  TDOCK_CHECK(phase < shares.size(), "the phase has a share");
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), int64_t{0});
  Rng rng(seed);
  rng.Shuffle(std::span(order));
  const std::vector<int64_t> boundaries = PhaseBoundaries(size, shares);
  return {order.begin() + boundaries[phase], order.begin() + boundaries[phase + 1]};
}

}  // namespace tdock::data
