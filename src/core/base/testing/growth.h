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

// Expects that work(2 * n) costs at most 2.3 times as much as work(n). Takes a larger n if work(n) is too short to be
// measured. Measures again, up to ten times, before it fails. `work` runs in this thread, which its CPU time is of.
// With a sanitizer, whose own costs grow otherwise, it only runs work(n).
//
// The allocator keeps what it was given back, so that no memory is new after the first time: pages that the kernel has
// to find cost more than what is measured, and only where much is asked for.
inline void ExpectLinear(const std::function<void(int64_t n)>& work, int64_t n) {
  constexpr double kMaxGrowth = 2.3, kMinSeconds = 0.001;
  constexpr int kAttempts = 10, kRuns = 3, kMaxDoublings = 8, kKept = 1 << 30;
  if (kSanitized) return work(n);
  mallopt(M_TRIM_THRESHOLD, kKept);
  mallopt(M_MMAP_THRESHOLD, kKept);
  const auto cost = [&](int64_t size) { return ThreadCpuSeconds([&] { work(size); }); };
  for (int i = 0; i < kMaxDoublings && cost(n) < kMinSeconds; ++i) n *= 2;
  double once = std::numeric_limits<double>::max(), twice = once, growth = once;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    for (int run = 0; run < kRuns; ++run) {
      const double once_now = cost(n), twice_now = cost(2 * n);
      once = std::min(once, once_now);
      twice = std::min(twice, twice_now);
      // Of one pair, too: under load, the least of many is a cost that the other never has the luck of.
      growth = std::min(growth, twice_now / once_now);
    }
    growth = std::min(growth, twice / once);
    if (growth <= kMaxGrowth) return;
  }
  ADD_FAILURE() << "size " << n << " costs " << once << " s, size " << 2 * n << " costs " << twice << " s, " << growth
                << " times as much";
}

}  // namespace tdock
