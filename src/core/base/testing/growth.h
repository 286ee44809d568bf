// For tests: whether the cost of something grows no faster than what it is about.
#pragma once

#include <gtest/gtest.h>
#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>

#include "core/base/testing/sanitized.h"

namespace tdock {

// CPU time that this thread needs for `work`: how loaded the machine is does not count.
inline double ThreadCpuSeconds(const std::function<void()>& work) {
  timespec begin{}, end{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  work();
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
  return static_cast<double>(end.tv_sec - begin.tv_sec) + 1e-9 * static_cast<double>(end.tv_nsec - begin.tv_nsec);
}

// Ratio of two costs, in CPU time: of the least of a few measurements, taken in turn, and of more if others use the
// machine and the ratio is not yet below `bound`. From one pair of measurements, too: under load, the least of many is
// a cost that the other never has the luck of.
//
// The allocator keeps what it was given back, so that no memory is new after the first time: pages that the kernel has
// to find cost more than what is measured, and only where much is asked for.
inline double CostRatio(const std::function<double()>& cost, const std::function<double()>& control, double bound) {
  constexpr int kRuns = 3, kMaxRuns = 30, kKept = 1 << 30;
  mallopt(M_TRIM_THRESHOLD, kKept);
  mallopt(M_MMAP_THRESHOLD, kKept);
  cost();
  double little = std::numeric_limits<double>::max(), much = little, ratio = little;
  for (int i = 0; i < kRuns || (i < kMaxRuns && ratio >= bound); ++i) {
    const double control_now = control(), cost_now = cost();
    little = std::min(little, control_now);
    much = std::min(much, cost_now);
    ratio = std::min({ratio, much / little, cost_now / control_now});
  }
  return ratio;
}

// Expects that work(2 * n) costs at most 2.3 times as much as work(n). Takes a larger n if work(n) is too short to be
// measured. `work` runs in this thread. With a sanitizer, whose own costs grow otherwise, it only runs work(n).
inline void ExpectLinear(const std::function<void(int64_t n)>& work, int64_t n) {
  constexpr double kMaxGrowth = 2.3, kMinSeconds = 0.001;
  constexpr int kMaxDoublings = 8;
  if (kSanitized) return work(n);
  const auto cost = [&](int64_t size) { return ThreadCpuSeconds([&] { work(size); }); };
  for (int i = 0; i < kMaxDoublings && cost(n) < kMinSeconds; ++i) n *= 2;
  EXPECT_LE(CostRatio([&] { return cost(2 * n); }, [&] { return cost(n); }, kMaxGrowth), kMaxGrowth)
      << "for twice the size " << n;
}

}  // namespace tdock
