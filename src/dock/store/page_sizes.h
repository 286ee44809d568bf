// Page sizes.
#pragma once

#include <cstddef>

namespace tdock::dock {

inline constexpr size_t kMebibyte = size_t{1} << 20;
inline constexpr size_t kPageBytes = size_t{4} << 10;
inline constexpr size_t kHugePageBytes = 2 * kMebibyte;

}  // namespace tdock::dock
