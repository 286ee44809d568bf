#include "core/base/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>

namespace tdock {
namespace {

TEST(Workers, EveryPieceRunsOnceOnItsThread) {
  for (int threads : {1, 2, 5}) {
    Workers workers(threads);
    for (int pieces : {0, 1, 2, 7, 100}) {
      std::vector<int> runs(static_cast<size_t>(pieces));
      std::vector<std::thread::id> ids(static_cast<size_t>(pieces));
      workers.Run(pieces, [&](int i) {
        ++runs[static_cast<size_t>(i)];
        ids[static_cast<size_t>(i)] = std::this_thread::get_id();
      });
      for (size_t i = 0; i < runs.size(); ++i) {
        EXPECT_EQ(runs[i], 1);
        EXPECT_EQ(ids[i], ids[i % static_cast<size_t>(threads)]);
      }
    }
  }
}

TEST(Workers, ThrowsTheFirstExceptionByNumberAndGoesOnWorking) {
  Workers workers(3);
  for (int round = 0; round < 20; ++round) {
    try {
      workers.Run(9, [](int i) {
        if (i >= 4) throw std::runtime_error(std::to_string(i));
      });
      FAIL();
    } catch (const std::runtime_error& e) {
      EXPECT_STREQ(e.what(), "4");
    }
  }
  std::atomic<int> sum = 0;
  workers.Run(4, [&](int i) { sum += i; });
  EXPECT_EQ(sum, 6);
}

TEST(Workers, OtherThreadsStartWithTheHook) {
  std::atomic<int> started = 0;
  Workers workers(4, [&] { ++started; });
  workers.Run(4, [](int) {});
  EXPECT_EQ(started, 3);
}

}  // namespace
}  // namespace tdock
