#include "core/base/no_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/status/statusor.h"
#include "core/base/testing/fails.h"

namespace tdock {
namespace {

TEST(NoMemory, IsAnErrorThatSaysWhatForAndWhichLimit) {
  const auto full = []() -> absl::Status { throw MemoryLimitReached("8 of 8 are full"); };
  EXPECT_THAT(OrNoMemory("a put", full), Fails(absl::StatusCode::kResourceExhausted, {"a put", "8 of 8 are full"}));
  const auto none = []() -> absl::StatusOr<int> { throw std::bad_alloc(); };
  EXPECT_THAT(OrNoMemory("an answer", none).status(), Fails(absl::StatusCode::kResourceExhausted, {"an answer"}));
}

TEST(NoMemory, LeavesEverythingElseAsItIs) {
  EXPECT_EQ(OrNoMemory("x", []() -> absl::StatusOr<int> { return 7; }).value(), 7);
  EXPECT_EQ(OrNoMemory("x", [] { return absl::NotFoundError("y"); }), absl::NotFoundError("y"));
}

}  // namespace
}  // namespace tdock
