#include "trainer/reward/math_units.h"

#include <gtest/gtest.h>

namespace tdock::reward {
namespace {

TEST(UnitName, IsTheSameForEachSpelling) {
  EXPECT_EQ(UnitName("centimeters"), "cm");
  EXPECT_EQ(UnitName("square centimetres"), "cm^2");
  EXPECT_EQ(UnitName("sq. cm"), "cm^2");
  EXPECT_EQ(UnitName("cm^{3}"), "cm^3");
  EXPECT_EQ(UnitName("Inches"), "in");
  EXPECT_EQ(UnitName("miles per hour"), "mi/h");
  EXPECT_EQ(UnitName("m / s"), "m/s");
  EXPECT_EQ(UnitName("° C"), "degree c");
  EXPECT_EQ(UnitName("square units"), "");
  EXPECT_EQ(UnitName(""), "");
}

TEST(UnitName, IsTheWordItselfWhereItIsNotKnown) {
  EXPECT_EQ(UnitName("Apples"), "apple");
  EXPECT_EQ(UnitName("PM"), "pm");
  EXPECT_EQ(UnitName("pieces of glass"), "piece glass");
  EXPECT_EQ(UnitName("^2"), "^2");
}

TEST(IsUnitWord, KnowsPluralsAndPartsOfUnits) {
  for (const char* word : {"cm", "feet", "degrees", "square", "per", "m", "%"}) EXPECT_TRUE(IsUnitWord(word)) << word;
  for (const char* word : {"", "x", "apples", "s s"}) EXPECT_FALSE(IsUnitWord(word)) << word;
}

}  // namespace
}  // namespace tdock::reward
