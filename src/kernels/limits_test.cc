#include "kernels/limits.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/loops.h"

namespace tdock::kernels {
namespace {

TEST(Limits, ReadEveryNumber) {
  for (const Loops* loops : AllLoops()) {
    for (const int64_t size : {0, 1, 191, 192, 1000}) {
      std::vector<float> x(static_cast<size_t>(size));
      std::iota(x.begin(), x.end(), 1.0F);
      EXPECT_EQ(loops->sum(x.data(), size), static_cast<float>(size * (size + 1) / 2)) << loops->instructions;
    }
  }
}

TEST(Limits, CountOperations) {
  for (const Loops* loops : AllLoops()) {
    const int64_t once = loops->multiply_and_add(1);
    EXPECT_GE(once, 2 * kLanes);
    EXPECT_EQ(loops->multiply_and_add(10), 10 * once) << loops->instructions;
  }
}

}  // namespace
}  // namespace tdock::kernels
