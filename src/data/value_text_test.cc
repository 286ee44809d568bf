#include "data/value_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/base/testing/fails.h"

namespace tdock::data {
namespace {

TEST(ValueText, IsWhatTheCellSays) {
  EXPECT_EQ(*TextOfValue(Value(" to the letter\n")), " to the letter\n");
  EXPECT_EQ(*TextOfValue(Value()), "");
  EXPECT_EQ(*TextOfValue(Value(true)), "true");
  EXPECT_EQ(*TextOfValue(Value(int64_t{-72})), "-72");
  EXPECT_EQ(*TextOfValue(Value(72.0)), "72");
  EXPECT_EQ(*TextOfValue(Value(0.1)), "0.1");
  EXPECT_EQ(*TextOfValue(Value(1e300)), "1e+300");
}

TEST(ValueText, ListsAndObjectsAreJson) {
  List list;
  list.emplace_back("say \"hi\"\n");
  list.emplace_back(int64_t{1});
  list.emplace_back();
  list.emplace_back(Object{{"a", Value(List{})}, {"b", Value(false)}, {"c", Value(Object{})}});
  EXPECT_EQ(*TextOfValue(Value(list)), R"(["say \"hi\"\n", 1, null, {"a": [], "b": false, "c": {}}])");
}

TEST(ValueText, RefusesWhatIsNoNumber) {
  EXPECT_THAT(TextOfValue(Value(std::nan(""))).status(),
              Fails(absl::StatusCode::kInvalidArgument, {" nan;", "finite"}));
  EXPECT_THAT(TextOfValue(Value(Object{{"a", Value(-INFINITY)}})).status(),
              Fails(absl::StatusCode::kInvalidArgument, {" -inf;", "finite"}));
}

}  // namespace
}  // namespace tdock::data
