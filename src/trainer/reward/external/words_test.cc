#include "trainer/reward/external/words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/fails.h"

namespace tdock::reward {
namespace {

using testing::ElementsAre;

TEST(SplitWords, SplitsAsAShellDoes) {
  EXPECT_THAT(*SplitWords("  ./score --fast\t-n 3 "), ElementsAre("./score", "--fast", "-n", "3"));
  EXPECT_THAT(*SplitWords(R"(a 'b c' "d e" f\ g ''  h"i"'j')"), ElementsAre("a", "b c", "d e", "f g", "", "hij"));
  EXPECT_THAT(*SplitWords(R"(a "\"\\\n" '\n' $HOME *)"), ElementsAre("a", R"("\\n)", R"(\n)", "$HOME", "*"));
}

TEST(SplitWords, SaysWhatIsWrong) {
  EXPECT_THAT(SplitWords("a 'b").status(), Fails(absl::StatusCode::kInvalidArgument, {"has a '"}));
  EXPECT_THAT(SplitWords("a b\\").status(), Fails(absl::StatusCode::kInvalidArgument, {"lone"}));
  EXPECT_THAT(SplitWords(" ").status(), Fails(absl::StatusCode::kInvalidArgument, {"no program"}));
  EXPECT_THAT(SplitWords("'' b").status(), Fails(absl::StatusCode::kInvalidArgument, {"no program"}));
}

}  // namespace
}  // namespace tdock::reward
