#include "text/arithmetic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

namespace tdock::text {
namespace {

TEST(AdditionProblem, PadsTheOperandsAndReversesTheSum) {
  EXPECT_EQ(AdditionProblem(37, 85), (Problem{"37+85=", "221"}));
  EXPECT_EQ(AdditionProblem(0, 0), (Problem{"00+00=", "0"}));
  EXPECT_EQ(AdditionProblem(5, 7), (Problem{"05+07=", "21"}));
  EXPECT_EQ(AdditionProblem(10, 90), (Problem{"10+90=", "001"}));
  EXPECT_EQ(AdditionProblem(99, 99), (Problem{"99+99=", "891"}));
}

TEST(SplitAddition, PutsEachProblemInOneSetWithBothOrdersTogether) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const AdditionSplit split = SplitAddition(seed);
    ASSERT_EQ(split.test.size(), 1000u);
    ASSERT_EQ(split.validation.size(), 256u);
    ASSERT_EQ(split.train.size(), 8744u);
    std::map<std::string, const PromptSet*> set_of;
    for (const PromptSet* set : {&split.train, &split.validation, &split.test}) {
      for (const Problem& problem : *set) set_of[problem.prompt] = set;
    }
    ASSERT_EQ(set_of.size(), 10'000u) << "no problem is in two sets";
    for (int x = 0; x < 100; ++x) {
      for (int y = 0; y < x; ++y) {
        ASSERT_EQ(set_of.at(AdditionProblem(x, y).prompt), set_of.at(AdditionProblem(y, x).prompt)) << x << ' ' << y;
      }
    }
  }
}

TEST(SplitAddition, DependsOnTheSeedOnly) {
  const AdditionSplit once = SplitAddition(7), again = SplitAddition(7), other = SplitAddition(8);
  EXPECT_EQ(once.train, again.train);
  EXPECT_EQ(once.validation, again.validation);
  EXPECT_EQ(once.test, again.test);
  EXPECT_NE(once.test, other.test);
  EXPECT_EQ(once.test[0].prompt, SplitAddition(7).test[0].prompt);
}

TEST(SplitAddition, UsesOnlyItsAlphabet) {
  for (const Problem& problem : SplitAddition(0).train) {
    const std::string all = problem.prompt + problem.answer;
    ASSERT_EQ(problem.prompt.size(), 6u);
    ASSERT_EQ(all.find_first_not_of(std::string(kAdditionAlphabet)), std::string::npos);
  }
}

}  // namespace
}  // namespace tdock::text
