#include "inference/grammar/char_dfa.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/testing/fails.h"

namespace tdock::inference {
namespace {

NumberBounds::Bound BoundOf(const std::string& number, bool is_excluded) {
  return {ReadDecimal(number).value(), is_excluded};
}

TEST(Decimals, AreReadWithoutSuperfluousZeros) {
  const auto written = [](const char* number) {
    const Decimal decimal = ReadDecimal(number).value();
    return absl::StrCat(decimal.is_negative ? "-" : "", decimal.whole, ".", decimal.fraction);
  };
  EXPECT_EQ(written("0"), "0.");
  EXPECT_EQ(written("-0.0"), "0.");
  EXPECT_EQ(written("-12.50"), "-12.5");
  EXPECT_EQ(written("1e+20"), "100000000000000000000.");
  EXPECT_EQ(written("1.25e-3"), "0.00125");
  EXPECT_EQ(written("120.5e-1"), "12.05");
  EXPECT_EQ(written("1.5e3"), "1500.");
  EXPECT_THAT(ReadDecimal("1e99").status(), Fails(absl::StatusCode::kInvalidArgument, {"1e99", "40"}));
  EXPECT_LT(CompareDecimals(ReadDecimal("-2").value(), ReadDecimal("-1.5").value()), 0);
  EXPECT_GT(CompareDecimals(ReadDecimal("10").value(), ReadDecimal("9.99").value()), 0);
  EXPECT_LT(CompareDecimals(ReadDecimal("0.1").value(), ReadDecimal("0.12").value()), 0);
  EXPECT_EQ(CompareDecimals(ReadDecimal("0.10").value(), ReadDecimal("0.1").value()), 0);
}

// All integers near the bounds, against what arithmetic says.
TEST(Numbers, AreIntegersWithinTheirBounds) {
  Rng rng(3);
  for (int round = 0; round < 150; ++round) {
    NumberBounds bounds{.is_integer = true};
    const auto random = [&] {
      return static_cast<int64_t>(rng.Below(round % 2 == 0 ? 30 : 2400)) - (round % 2 == 0 ? 15 : 1200);
    };
    const int64_t low = random(), high = low + static_cast<int64_t>(rng.Below(1300));
    const bool has_min = rng.Below(4) != 0, has_max = rng.Below(4) != 0, half = rng.Below(4) == 0;
    if (has_min) bounds.min = BoundOf(absl::StrCat(low, half ? ".5" : ""), rng.Below(3) == 0);
    if (has_max) bounds.max = BoundOf(absl::StrCat(high), rng.Below(3) == 0);
    bounds.multiple_of = rng.Below(3) == 0 ? static_cast<int64_t>(1 + rng.Below(20)) : 1;
    const CharDfa dfa = DfaOfNumbers(bounds).value();
    for (int64_t value = -2600; value <= 2600; ++value) {
      const Decimal decimal = ReadDecimal(absl::StrCat(value)).value();
      const int to_min = bounds.min ? CompareDecimals(decimal, bounds.min->value) : 1;
      const int to_max = bounds.max ? CompareDecimals(bounds.max->value, decimal) : 1;
      const bool is_in = (to_min > 0 || (to_min == 0 && !bounds.min->is_excluded)) &&
                         (to_max > 0 || (to_max == 0 && !bounds.max->is_excluded)) && value % bounds.multiple_of == 0;
      ASSERT_EQ(dfa.Accepts(absl::StrCat(value)), is_in)
          << value << " for " << (has_min ? absl::StrCat(low, half ? ".5" : "") : "") << " to "
          << (has_max ? absl::StrCat(high) : "") << ", multiples of " << bounds.multiple_of;
    }
    for (const char* const text : {"-0", "01", "+1", "", "-", "1.0", "1e1"}) EXPECT_FALSE(dfa.Accepts(text)) << text;
  }
}

TEST(Numbers, AreFractionsWithinTheirBounds) {
  Rng rng(4);
  const std::vector<std::string> ends = {"0",    "0.5", "1",    "1.25", "9.99",   "10", "10.01",
                                         "99.5", "100", "-0.5", "-1",   "-10.01", "-9"};
  for (int round = 0; round < 200; ++round) {
    NumberBounds bounds;
    if (rng.Below(4) != 0) bounds.min = BoundOf(ends[rng.Below(ends.size())], rng.Below(2) == 0);
    if (rng.Below(4) != 0) bounds.max = BoundOf(ends[rng.Below(ends.size())], rng.Below(2) == 0);
    if (!bounds.min && !bounds.max) continue;
    const CharDfa dfa = DfaOfNumbers(bounds).value();
    for (int i = 0; i < 300; ++i) {
      std::string text = absl::StrCat(rng.Below(2) == 0 ? "-" : "", rng.Below(rng.Below(2) == 0 ? 12 : 120));
      if (rng.Below(4) != 0) absl::StrAppend(&text, ".", rng.Below(rng.Below(2) == 0 ? 10 : 1000));
      const Decimal decimal = ReadDecimal(text).value();
      if (decimal.is_zero() && text[0] == '-') continue;
      const int to_min = bounds.min ? CompareDecimals(decimal, bounds.min->value) : 1;
      const int to_max = bounds.max ? CompareDecimals(bounds.max->value, decimal) : 1;
      const bool is_in = (to_min > 0 || (to_min == 0 && !bounds.min->is_excluded)) &&
                         (to_max > 0 || (to_max == 0 && !bounds.max->is_excluded));
      ASSERT_EQ(dfa.Accepts(text), is_in) << text << ", round " << round;
    }
    // Zeros at the end change nothing, and the least zero is not negative.
    EXPECT_EQ(dfa.Accepts("1.2"), dfa.Accepts("1.20"));
    EXPECT_FALSE(dfa.Accepts("-0.0"));
  }
}

// No number that is accepted is rounded to the bound when it is read.
TEST(Numbers, AreNotRoundedToABoundThatIsExcluded) {
  const CharDfa below_one = DfaOfNumbers({.max = BoundOf("1", true)}).value();
  for (int digits = 1; digits < 25; ++digits) {
    const std::string text = absl::StrCat("0.", std::string(static_cast<size_t>(digits), '9'));
    double value = 0;
    ASSERT_TRUE(absl::SimpleAtod(text, &value));
    EXPECT_FALSE(below_one.Accepts(text) && value >= 1) << text;
    EXPECT_EQ(below_one.Accepts(text), digits <= 14) << text;
  }
}

TEST(Numbers, WithoutBoundsAreThoseOfJson) {
  const CharDfa numbers = DfaOfNumbers({}).value();
  for (const char* const text : {"0", "-0", "10", "-1.5", "0.001", "1e5", "1E-05", "-2.5e+10"})
    EXPECT_TRUE(numbers.Accepts(text)) << text;
  for (const char* const text : {"", "-", "01", "1.", ".5", "1e", "1e+", "1e100", "+1"})
    EXPECT_FALSE(numbers.Accepts(text)) << text;
  EXPECT_TRUE(DfaOfNumbers({.min = BoundOf("2", false), .max = BoundOf("1", false)}).value().empty());
  EXPECT_TRUE(DfaOfNumbers({.min = BoundOf("1", false), .max = BoundOf("1", true)}).value().empty());
}

}  // namespace
}  // namespace tdock::inference
