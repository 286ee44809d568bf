#include "core/base/no_memory.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/status/statusor.h"

namespace tdock {
namespace {

TEST(NoMemory, IsAnErrorThatSaysWhatForAndWhichLimit) {
  const auto full = []() -> absl::Status { throw MemoryLimitReached("8 of 8 bytes are taken"); };
  EXPECT_EQ(OrNoMemory("a put", full),
            absl::ResourceExhaustedError("there is no memory for a put: 8 of 8 bytes are taken"));
  const auto none = []() -> absl::StatusOr<int> { throw std::bad_alloc(); };
  EXPECT_EQ(OrNoMemory("an answer", none).status(), absl::ResourceExhaustedError("there is no memory for an answer"));
}

TEST(NoMemory, LeavesEverythingElseAsItIs) {
  EXPECT_EQ(OrNoMemory("x", []() -> absl::StatusOr<int> { return 7; }).value(), 7);
  EXPECT_EQ(OrNoMemory("x", [] { return absl::NotFoundError("y"); }), absl::NotFoundError("y"));
}

}  // namespace
}  // namespace tdock
