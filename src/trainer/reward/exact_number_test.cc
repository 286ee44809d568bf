#include "trainer/reward/exact_number.h"

#include <gtest/gtest.h>

#include <limits>

namespace tdock::reward {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

TEST(Rational, IsInLowestTermsOrNothing) {
  EXPECT_EQ(MakeRational(6, -4), (Rational{-3, 2}));
  EXPECT_EQ(MakeRational(0, -7), (Rational{0, 1}));
  EXPECT_EQ(MakeRational(1, 0), std::nullopt);
  EXPECT_EQ(MakeRational(std::numeric_limits<int64_t>::min(), 1), std::nullopt);
  EXPECT_EQ(Add({1, 2}, {1, 3}), (Rational{5, 6}));
  EXPECT_EQ(Multiply({2, 3}, {3, 4}), (Rational{1, 2}));
  EXPECT_EQ(Multiply({kMost, 1}, {2, 1}), std::nullopt);
  EXPECT_EQ(Add({kMost, 1}, {1, 1}), std::nullopt);
  EXPECT_EQ(Add({1, kMost}, {1, kMost - 1}), std::nullopt);
}

TEST(Decimal, HasOneValueHoweverItIsWritten) {
  EXPECT_EQ(DecimalValue("012.50"), (Rational{25, 2}));
  EXPECT_EQ(DecimalValue(".5"), (Rational{1, 2}));
  EXPECT_EQ(DecimalValue("9223372036854775807"), (Rational{kMost, 1}));
  EXPECT_EQ(DecimalValue("9223372036854775808"), std::nullopt);
  EXPECT_EQ(DecimalValue("0.12345678901234567890123"), std::nullopt);
  EXPECT_EQ(PlainDecimal("0012.500"), "12.5");
  EXPECT_EQ(PlainDecimal(".50"), "0.5");
  EXPECT_EQ(PlainDecimal("000"), "0");
  EXPECT_EQ(PlainDecimal("100"), "100");
}

TEST(Decimal, IsShiftedByPowersOfTen) {
  EXPECT_EQ(ShiftPoint("1.50", 3), "1500");
  EXPECT_EQ(ShiftPoint("1.25", 1), "12.5");
  EXPECT_EQ(ShiftPoint("1.25", 2), "125");
  EXPECT_EQ(ShiftPoint("1.25", 0), "1.25");
  EXPECT_EQ(ShiftPoint(".5", 0), ".5");
  EXPECT_EQ(ShiftPoint("5", -3), ".005");
  EXPECT_EQ(ShiftPoint("1250", -2), "12.50");
  EXPECT_EQ(PlainDecimal(ShiftPoint("0", 5)), "0");
}

struct NumberCase {
  const char* text;
  const char* number;  // "": none
};

constexpr NumberCase kCases[] = {
    {"42", "42"},
    {"It is 42.", "42"},
    {"first 41, then 42", "42"},
    {"She pays $1,234.50.", "2469/2"},
    {"#### 1,234", "1234"},
    {"3 + 4 = 7\n#### $7", "7"},
    {"#### 5\nThat took 10 steps.", "5"},
    {"#### 4\n#### 5", "5"},
    {"####", ""},
    {"#### none, but 5 before", "5"},
    {"no number", ""},
    {"", ""},
    {"-5", "-5"},
    {"x = −5", "-5"},
    {"-$5", "-5"},
    {"-0", "0"},
    {"10-5", "5"},
    {"10 - 5", "5"},
    {"x-5", "5"},
    {"(-5)", "-5"},
    {"50%", "50"},
    {"0.50", "1/2"},
    {".5", "1/2"},
    {"5.0", "5"},
    {"3/4", "3/4"},
    {"6/8", "3/4"},
    {"-3/4 of it", "-3/4"},
    {"1/0", "0"},
    {"on 1/2/2026", "2026"},
    {"\\frac{3}{4}", "3/4"},
    {"-\\dfrac{6}{8}", "-3/4"},
    {"\\frac34", "3/4"},
    {"\\frac{-3}{4}", "-3/4"},
    {"\\frac{3}{ -4 }", "-3/4"},
    {"-\\frac{−3}{4}", "3/4"},
    {"\\frac{-3}{-4}", "3/4"},
    {"\\frac{+3}{4}", "3/4"},
    {"2\\frac{-1}{3}", "-1/3"},
    {"\\frac{3}4", "3/4"},
    {"3 1/2", "7/2"},
    {"5 1/2", "11/2"},
    {"-3 1/2", "-7/2"},
    {"#### 3 1/2", "7/2"},
    {"3\\frac{1}{2}", "7/2"},
    {"#### 3\\frac12", "7/2"},
    {"take 3 4/2", "2"},
    {"2.5 1/2", "1/2"},
    {"5 1/2/2026", "2026"},
    {"123456789012345678901234567890 1/2", "123456789012345678901234567890 1/2"},
    {"\\boxed{1{,}000}", "1000"},
    {"1, 2, 3", "3"},
    {"1,2345", "2345"},
    {"123456789012345678901234567890.50", "123456789012345678901234567890.5"},
};

TEST(FinalNumber, IsBehindTheMarkOrTheLast) {
  for (const NumberCase& c : kCases) {
    EXPECT_EQ(FinalNumber(c.text, false).value_or(""), c.number) << c.text;
  }
}

TEST(FinalNumber, CanBeRequiredToBeMarked) {
  EXPECT_EQ(FinalNumber("It is 42", true), std::nullopt);
  EXPECT_EQ(FinalNumber("#### 42", true), "42");
}

TEST(FinalNumber, IsLinearInHostileText) {
  for (const char* piece :
       {"1", "1,", "1,111", "1/", "-", "\\frac{1", "#", ".", "1.", "{,}000", "\\frac{1}{0}", "1 ", "1 1/", "\\frac "}) {
    std::string text;
    while (text.size() < (1 << 20)) text += piece;
    FinalNumber(text, false);
  }
}

TEST(IsNumber, IsTrueForATextThatHoldsOneNumberAndNothingElse) {
  for (const char* text : {"42", " 42\n", "-5", "−5", "+5", "1,234.50", "$1,000", "-$5", "12%", "12 %", "12\\%", "3/4",
                           "3 1/2", "\\frac{3}{4}", "-\\frac34", "007", ".5"}) {
    EXPECT_TRUE(IsNumber(text)) << text;
  }
  for (const char* text : {"", "-", "%", "x", "5 apples", "x = 5", "1, 2, 3", "1,2,3", "1 2", "2026-01-31", "1/2/2026",
                           "12:30", "5.", "3^2", "#### 4", "\\frac{3}{4} m", "\\sqrt{2}"}) {
    EXPECT_FALSE(IsNumber(text)) << text;
  }
}

}  // namespace
}  // namespace tdock::reward
