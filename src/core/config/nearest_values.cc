#include "core/config/nearest_values.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::config {
namespace {

// Values of 0 do not exist.
std::string Either(int64_t below, int64_t above) {
  if (below == 0 && above == 0) return "";
  if (below == 0) return absl::StrCat(above);
  if (above == 0 || above == below) return absl::StrCat(below);
  return absl::StrCat(below, " or ", above);
}

}  // namespace

std::string NearestMultiples(int64_t value, int64_t of, int64_t most) {
  TDOCK_CHECK(of > 0, "there are only multiples of positive numbers");
  const int64_t below = std::clamp<int64_t>(value, 0, std::max<int64_t>(most, 0)) / of * of;
  const bool fits = below <= most - of;
  return Either(below, (below == value && below > 0) || !fits ? below : below + of);
}

std::string NearestDivisors(int64_t value, int64_t whole) {
  return NearestDivisors(value, whole, [](int64_t) { return true; });
}

std::string NearestDivisors(int64_t value, int64_t whole, const std::function<bool(int64_t)>& is_legal) {
  TDOCK_CHECK(value > 0 && whole > 0, "there are only divisors of positive numbers");
  int64_t below = 0;
  int64_t above = 0;
  const auto consider = [&](int64_t divisor) {
    if (!is_legal(divisor)) return;
    if (divisor <= value) below = std::max(below, divisor);
    if (divisor >= value) above = above == 0 ? divisor : std::min(above, divisor);
  };
  for (int64_t divisor = 1; divisor <= whole / divisor; ++divisor) {
    if (whole % divisor != 0) continue;
    consider(divisor);
    consider(whole / divisor);
  }
  return Either(below, above);
}

}  // namespace tdock::config
