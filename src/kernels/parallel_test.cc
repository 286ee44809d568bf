#include "kernels/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/base/rng.h"
#include "core/base/testing/patience.h"

namespace tdock::kernels {
namespace {

// How often each number was in a range.
class Counts {
 public:
  explicit Counts(int64_t count) : counts_(static_cast<size_t>(count)) {}
  void Add(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) counts_[static_cast<size_t>(i)].fetch_add(1, std::memory_order_relaxed);
  }
  bool AllAre(int expected) const {
    for (const std::atomic<int>& count : counts_) {
      if (count != expected) return false;
    }
    return true;
  }

 private:
  std::vector<std::atomic<int>> counts_;
};

TEST(ParallelFor, OfATeamVisitsEachNumberOnceInManyLoops) {
  Workers workers(3);
  WithTeam(workers, [&] {
    Rng random(1);
    for (int loop = 0; loop < 3000; ++loop) {
      const auto count = static_cast<int64_t>(random.Below(200));
      Counts counts(count);
      ParallelFor(count, 1 + static_cast<int64_t>(random.Below(20)),
                  [&](int64_t begin, int64_t end) { counts.Add(begin, end); });
      ASSERT_TRUE(counts.AllAre(1)) << "loop " << loop << " of " << count;
    }
  });
}

TEST(ParallelFor, OfATeamUsesItsThreads) {
  Workers workers(2);
  std::atomic<int> arrived = 0, met = 0;
  WithTeam(workers, [&] {
    // Each range waits for the other. On one thread alone, the first would wait in vain.
    ParallelFor(2, 1, [&](int64_t, int64_t) {
      arrived.fetch_add(1);
      if (Eventually([&] { return arrived == 2; })) met.fetch_add(1);
    });
  });
  EXPECT_EQ(met, 2);
}

TEST(ParallelFor, InsideOfALoopRunsOnItsThread) {
  Workers workers(2);
  Counts counts(6 * 50);
  WithTeam(workers, [&] {
    ParallelFor(6, 1, [&](int64_t outer, int64_t end) {
      for (; outer < end; ++outer) {
        const std::thread::id thread = std::this_thread::get_id();
        ParallelFor(50, 1, [&](int64_t begin, int64_t inner_end) {
          EXPECT_EQ(std::this_thread::get_id(), thread);
          counts.Add(outer * 50 + begin, outer * 50 + inner_end);
        });
      }
    });
  });
  EXPECT_TRUE(counts.AllAre(1));
}

TEST(ParallelFor, RethrowsWhatARangeThrowsAndGoesOn) {
  Workers workers(2);
  WithTeam(workers, [&] {
    const auto fail = [](int64_t begin, int64_t end) {
      if (begin <= 7 && 7 < end) throw std::runtime_error("seven");
    };
    EXPECT_THROW(ParallelFor(20, 1, fail), std::runtime_error);
    Counts counts(20);
    ParallelFor(20, 1, [&](int64_t begin, int64_t end) { counts.Add(begin, end); });
    EXPECT_TRUE(counts.AllAre(1));
  });
}

TEST(WithTeam, EndsWithItsBodyAlsoByAnException) {
  Workers workers(2);
  EXPECT_THROW(WithTeam(workers, [] { throw std::runtime_error("no"); }), std::runtime_error);
  Counts counts(10);
  WithTeam(workers, [&] { ParallelFor(10, 1, [&](int64_t begin, int64_t end) { counts.Add(begin, end); }); });
  ParallelFor(10, 1, [&](int64_t begin, int64_t end) { counts.Add(begin, end); });  // without a team
  EXPECT_TRUE(counts.AllAre(2));
}

TEST(WithTeam, OfATeamIsTheSameTeam) {
  Workers workers(2);
  Counts counts(10);
  WithTeam(workers, [&] {
    WithTeam(workers, [&] { ParallelFor(10, 1, [&](int64_t begin, int64_t end) { counts.Add(begin, end); }); });
  });
  EXPECT_TRUE(counts.AllAre(1));
}

}  // namespace
}  // namespace tdock::kernels
