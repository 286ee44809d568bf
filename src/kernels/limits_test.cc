#include "kernels/limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "core/base/testing/fails.h"
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

TEST(Instructions, AreTheBestUnlessOthersAreChosen) {
  const std::string best = AllLoops().front()->instructions;
  EXPECT_EQ(Instructions(), best);
  for (const Loops* loops : AllLoops()) {
    ASSERT_EQ(UseInstructions(loops->instructions), absl::OkStatus());
    EXPECT_EQ(Instructions(), std::string(loops->instructions));
  }
  EXPECT_EQ(Instructions(), kPortable) << "every processor has these";
  EXPECT_THAT(UseInstructions("abacus"), Fails(absl::StatusCode::kFailedPrecondition, {"no abacus", best, "portable"}));
  const std::string has(UseInstructions("abacus").message());
  EXPECT_EQ(has.find("avx2"), has.rfind("avx2")) << has;
  EXPECT_EQ(Instructions(), kPortable);
  ASSERT_EQ(UseInstructions(kBestInstructions), absl::OkStatus());
  EXPECT_EQ(Instructions(), best);
}

}  // namespace
}  // namespace tdock::kernels
