#include "core/config/nearest_values.h"

#include <gtest/gtest.h>

#include <limits>

namespace tdock::config {
namespace {

TEST(NearestValues, MultiplesAreThoseBelowAndAbove) {
  EXPECT_EQ(NearestMultiples(650, 32), "640 or 672");
  EXPECT_EQ(NearestMultiples(640, 32), "640");
  EXPECT_EQ(NearestMultiples(7, 32), "32");
  EXPECT_EQ(NearestMultiples(0, 32), "32");
  EXPECT_EQ(NearestMultiples(-5, 32), "32");
  EXPECT_EQ(NearestMultiples(std::numeric_limits<int64_t>::max(), int64_t{1} << 62), "4611686018427387904");
  EXPECT_EQ(NearestMultiples(650, 32, 671), "640");
  EXPECT_EQ(NearestMultiples(650, 32, 100), "96");
  EXPECT_EQ(NearestMultiples(7, 32, 31), "");
}

TEST(NearestValues, DivisorsAreThoseBelowAndAbove) {
  EXPECT_EQ(NearestDivisors(150, 1024), "128 or 256");
  EXPECT_EQ(NearestDivisors(256, 1024), "256");
  EXPECT_EQ(NearestDivisors(3000, 1024), "1024");
  EXPECT_EQ(NearestDivisors(5, 7), "1 or 7");
  EXPECT_EQ(NearestDivisors(2, 1), "1");
  EXPECT_EQ(NearestDivisors(3, 36), "3");
  EXPECT_EQ(NearestDivisors(5, 36), "4 or 6");
  EXPECT_EQ(NearestDivisors(5, 36, [](int64_t divisor) { return divisor % 9 == 0; }), "9");
  EXPECT_EQ(NearestDivisors(20, 36, [](int64_t divisor) { return divisor % 9 == 0; }), "18 or 36");
  EXPECT_EQ(NearestDivisors(5, 36, [](int64_t divisor) { return divisor > 36; }), "");
}

}  // namespace
}  // namespace tdock::config
