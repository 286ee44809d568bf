#include "trainer/reward/reward_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/base/testing/fails.h"

namespace tdock::reward {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::IsNan;
using testing::SizeIs;

// The message of loading `yaml`; "" if it is accepted.
std::string LoadMessage(absl::string_view yaml) {
  RewardConfig config;
  config::Spec spec;
  BindReward(spec, config);
  return std::string(config::Load(spec, yaml, "grpo.yaml", {}).message());
}

std::unique_ptr<Reward> Loaded(absl::string_view yaml) {
  RewardConfig config;
  config::Spec spec;
  BindReward(spec, config);
  const absl::Status status = config::Load(spec, yaml, "grpo.yaml", {});
  EXPECT_TRUE(status.ok()) << status;
  return MakeReward(config).value();
}

Answer Given(std::string response, std::string truth, std::string source = "") {
  return {.prompt = "What?",
          .response = std::move(response),
          .finished = true,
          .truth = std::move(truth),
          .source = std::move(source)};
}

// The total of one answer.
float Total(Reward& reward, const Answer& answer) {
  const auto scores = CheckedScore(reward, std::span(&answer, 1));
  EXPECT_TRUE(scores.ok()) << scores.status();
  return scores.ok() ? scores->totals[0] : -100;
}

TEST(RewardConfig, APatternThatDoesNotCompileIsAViolationOfItsKey) {
  const std::string message = LoadMessage("reward.regex: {weight: 1, pattern: 'a(b'}\nreward.format.pattern: '['\n");
  EXPECT_THAT(message, Mentions({"reward.regex.pattern", "\"a(b\"", "byte 3", "reward.format.pattern", "\"[\""}));
  EXPECT_THAT(LoadMessage("reward.regex: {weight: 1, pattern: '{truth}('}"),
              Mentions({"reward.regex.pattern", "compile"}));
}

TEST(RewardConfig, RefusesRulesThatCannotWork) {
  EXPECT_THAT(LoadMessage("reward.format.weight: 0.5"),
              Mentions({"reward.format.weight", "reward.format.pattern", "needs"}));
  EXPECT_THAT(LoadMessage("reward.length: {weight: 1, soft_limit: 100, hard_limit: 100}"),
              Mentions({"reward.length.hard_limit", "reward.length.soft_limit", "100"}));
  EXPECT_THAT(LoadMessage("reward.math: {weight: 1, sources: 'a,,b'}"),
              Mentions({"reward.math.sources", "\"a,,b\"", "empty"}));
  EXPECT_THAT(LoadMessage("reward.math: {weight: 1, sources: 'a*b'}"),
              Mentions({"reward.math.sources", "\"a*b\"", "'*'"}));
  EXPECT_THAT(LoadMessage("reward.math.sources: a"), Mentions({"reward.math.sources", "reward.math.weight"}));
  EXPECT_THAT(LoadMessage("reward.format.pattern: a"), Mentions({"reward.format.pattern", "reward.format.weight"}));
}

TEST(RewardConfig, TakesOptionsOfARuleThatIsOffBesideOthers) {
  EXPECT_EQ(LoadMessage("reward: {exact.weight: 1, format: {weight: 0, pattern: a}}"), "");
}

TEST(MakeReward, RefusesTheSameWithoutASpec) {
  const auto status = [](const RewardConfig& config) { return MakeReward(config).status(); };
  const auto refused = [](std::vector<std::string> names) {
    return Fails(absl::StatusCode::kInvalidArgument, std::move(names));
  };
  EXPECT_THAT(status({.regex = {.weight = 1, .pattern = "("}}), refused({"reward.regex: ", "\"(\""}));
  EXPECT_THAT(status({.regex = {.weight = 1}}), refused({"reward.regex: ", "a pattern"}));
  EXPECT_THAT(status({.length = {.weight = 1}}), refused({"reward.length: ", "hard limit"}));
  EXPECT_THAT(status({.exact = {.weight = std::nan("")}}), refused({"reward.exact.weight", "nan", "finite"}));
}

TEST(MakeReward, ExactComparesTexts) {
  const auto reward = Loaded("reward.exact.weight: 2");
  EXPECT_EQ(Total(*reward, Given(" 221\n", "221")), 2);
  EXPECT_EQ(Total(*reward, Given("221.", "221")), 0);
  Answer cut = Given("221", "221");
  cut.finished = false;
  EXPECT_EQ(Total(*reward, cut), 0);
  const auto strict = Loaded("reward.exact: {weight: 1, strip: false, require_finished: false}");
  EXPECT_EQ(Total(*strict, Given(" 221", "221")), 0);
  EXPECT_EQ(Total(*strict, cut), 1);
}

TEST(MakeReward, NumberComparesTheLastNumber) {
  const auto reward = Loaded("reward.number.weight: 1");
  EXPECT_EQ(Total(*reward, Given("That makes $1,000.00.", "so 1000\n#### 1000")), 1);
  EXPECT_EQ(Total(*reward, Given("1000 or 2", "1000")), 0);
  EXPECT_EQ(Total(*reward, Given("none", "1000")), 0);
  const auto strict = Loaded("reward.number: {weight: 1, strict: true}");
  EXPECT_EQ(Total(*strict, Given("1000", "1000")), 0);
  EXPECT_EQ(Total(*strict, Given("#### 1000", "1000")), 1);
}

TEST(MakeReward, MathComparesTheLastBox) {
  const auto reward = Loaded("reward.math.weight: 1");
  EXPECT_EQ(Total(*reward, Given("so \\boxed{\\frac12}.", "0.5")), 1);
  EXPECT_EQ(Total(*reward, Given("so \\boxed{\\frac12}.", "as \\boxed{1/2}")), 1);
  EXPECT_EQ(Total(*reward, Given("Answer: 0.5", "0.5")), 0);
  EXPECT_EQ(Total(*reward, Given("\\boxed{}", "5")), 0);
  const auto either = Loaded("reward.math: {weight: 1, answer: boxed_or_line}");
  EXPECT_EQ(Total(*either, Given("Answer: $\\frac12$", "0.5")), 1);
  EXPECT_EQ(Total(*either, Given("\\boxed{3}\nAnswer: 0.5", "0.5")), 0);
  const auto line = Loaded("reward.math: {weight: 1, answer: line}");
  EXPECT_EQ(Total(*line, Given("\\boxed{3}\nAnswer: 0.5", "0.5")), 1);
}

TEST(MakeReward, RegexMayContainTheTruth) {
  const auto reward = Loaded("reward.regex: {weight: 1, pattern: 'answer is {truth}\\b'}");
  EXPECT_EQ(Total(*reward, Given("So, answer is 1.5", "1.5")), 1);
  EXPECT_EQ(Total(*reward, Given("So, answer is 1x5", "1.5")), 0) << "the truth is not a pattern";
  EXPECT_EQ(Total(*reward, Given("So, answer is 1.53", "1.5")), 0);
}

TEST(MakeReward, FormatIsOfTheWholeResponse) {
  const auto reward = Loaded("reward.format: {weight: 0.5, pattern: '(?s)<think>.*</think>\\s*<answer>.*</answer>'}");
  EXPECT_EQ(Total(*reward, Given("<think>\n a </think>\n<answer>4</answer>\n", "")), 0.5);
  EXPECT_EQ(Total(*reward, Given("Well, <think>a</think><answer>4</answer>", "")), 0);
}

TEST(MakeReward, LengthFallsBetweenItsLimits) {
  const auto reward = Loaded("reward.length: {weight: 1, soft_limit: 10, hard_limit: 20}");
  const auto score = [&](int characters) {
    std::string response;
    for (int i = 0; i < characters; ++i) response += "é";
    return Total(*reward, Given(response, ""));
  };
  EXPECT_EQ(score(0), 0);
  EXPECT_EQ(score(10), 0);
  EXPECT_FLOAT_EQ(score(11), -0.1F);
  EXPECT_FLOAT_EQ(score(15), -0.5F);
  EXPECT_EQ(score(20), -1);
  EXPECT_EQ(score(1000), -1);
}

TEST(MakeReward, AddsRulesBySourceAndShowsTheirParts) {
  const auto reward = Loaded(
      "reward: {math: {weight: 1, sources: 'hard, aime*'}, exact: {weight: 2, sources: easy}, "
      "format: {weight: 0.5, pattern: '.*\\.'}}");
  const Answer answers[] = {Given("4", "4", "easy"), Given("\\boxed{4.0}.", "4", "hard"), Given("4.", "4", "aime2024")};
  const auto scores = CheckedScore(*reward, answers);
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_THAT(scores->totals, ElementsAre(2, 1.5, 0.5));
  ASSERT_THAT(scores->parts, SizeIs(3));
  EXPECT_EQ(scores->parts[0].rule, "exact");
  EXPECT_THAT(scores->parts[0].scores, ElementsAre(1, IsNan(), IsNan()));
  EXPECT_EQ(scores->parts[1].rule, "format");
  EXPECT_THAT(scores->parts[1].scores, ElementsAre(0, 1, 1));
  EXPECT_EQ(scores->parts[2].rule, "math");
  EXPECT_THAT(scores->parts[2].scores, ElementsAre(IsNan(), 1, 0));
  const auto none = CheckedScore(*reward, {});
  EXPECT_THAT(none->parts, IsEmpty());
}

TEST(MakeReward, TellsWhichTotalsCouldNotBeLessOrMore) {
  const auto reward = Loaded(
      "reward: {exact: {weight: 2, sources: 'a, b'}, format: {weight: -0.5, pattern: '.*x', sources: b}, "
      "length: {weight: 0.1, soft_limit: 1, hard_limit: 3, sources: 'b, c'}}");
  const Answer answers[] = {Given("4", "4", "a"), Given("5", "4", "a"), Given("4", "4", "b"),  Given("5", "4", "b"),
                            Given("x", "x", "b"), Given("", "4", "c"),  Given("55", "4", "c"), Given("555x", "4", "b")};
  std::vector<Bound> bounds(std::size(answers));
  const auto take = [&](size_t i, absl::StatusOr<AnswerScore> score) { bounds[i] = score->bound; };
  ASSERT_EQ(reward->ScoreEach(
                answers, [] { return absl::OkStatus(); }, take),
            absl::OkStatus());
  EXPECT_THAT(bounds, ElementsAre(Bound::kGreatest, Bound::kLeast, Bound::kGreatest, Bound::kBetween, Bound::kBetween,
                                  Bound::kGreatest, Bound::kBetween, Bound::kLeast));
}

TEST(RewardConfig, TellsWhetherAllRulesCompareWithATruth) {
  const auto rules = [](absl::string_view yaml) {
    RewardConfig config;
    config::Spec spec;
    BindReward(spec, config);
    EXPECT_EQ(config::Load(spec, yaml, "grpo.yaml", {}), absl::OkStatus());
    return RulesOfTruth(config);
  };
  EXPECT_THAT(rules(""), ElementsAre("exact"));
  EXPECT_THAT(rules("reward: {math.weight: 1, number.weight: 0.5}"), ElementsAre("number", "math"));
  EXPECT_THAT(rules("reward.regex: {weight: 1, pattern: 'is {truth}'}"), ElementsAre("regex"));
  EXPECT_THAT(rules("reward: {exact.weight: 1, regex: {weight: 1, pattern: 'is'}}"), IsEmpty());
  EXPECT_THAT(rules("reward: {exact.weight: 1, format: {weight: 1, pattern: '.'}}"), IsEmpty());
  EXPECT_THAT(rules("reward: {exact.weight: 1, length: {weight: 1, soft_limit: 1, hard_limit: 2}}"), IsEmpty());
}

TEST(MakeReward, NamesASourceThatNoRuleIsFor) {
  const auto reward = Loaded("reward.math: {weight: 1, sources: hard}");
  const Answer answers[] = {Given("4", "4", "hard"), Given("4", "4", "easy")};
  const absl::Status status = CheckedScore(*reward, answers).status();
  EXPECT_THAT(status,
              Fails(absl::StatusCode::kInvalidArgument, {"\"easy\"", "sample 1", "\"What?\"", "reward.RULE.sources"}));
}

TEST(MakeReward, CountsWhatCouldNotBeDecidedAsZero) {
  const auto reward = Loaded("reward: {number.weight: 1, regex: {weight: 1, pattern: '(a|aa)+$'}}");
  const Answer answers[] = {Given(std::string(2000, 'a') + "b", "no number"), Given("4", "4")};
  const auto scores = CheckedScore(*reward, answers);
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_THAT(scores->totals, ElementsAre(0, 1));
  EXPECT_EQ(scores->parts[0].undecided, 1);
  EXPECT_EQ(scores->parts[1].undecided, 1);
  const auto math = Loaded("reward.math.weight: 1");
  EXPECT_EQ(Total(*math, Given("\\boxed{}", "")), 0) << "an empty truth is nobody's answer";
  for (const char* yaml : {"reward.exact.weight: 1", "reward.exact: {weight: 1, strip: false}",
                           "reward.regex: {weight: 1, pattern: 'is {truth}'}"}) {
    const auto rule = Loaded(yaml);
    const Answer blank[] = {Given("", ""), Given(" ", " "), Given("it is ", "")};
    const auto blank_scores = CheckedScore(*rule, blank);
    ASSERT_TRUE(blank_scores.ok()) << blank_scores.status();
    EXPECT_THAT(blank_scores->totals, ElementsAre(0, 0, 0)) << yaml;
    EXPECT_EQ(blank_scores->parts[0].undecided, 3) << yaml;
  }
}

TEST(MakeReward, WithoutRulesTheSourceChoosesOne) {
  const auto reward = Loaded("");
  EXPECT_EQ(Total(*reward, Given("122", "122")), 1);
  EXPECT_EQ(Total(*reward, Given("It is 122", "122", "my_data")), 0) << "exact";
  EXPECT_EQ(Total(*reward, Given("So\n#### 122", "122", "openai/gsm8k")), 1);
  EXPECT_EQ(Total(*reward, Given("So 122", "122", "openai/gsm8k")), 0) << "verl wants the mark, too";
  EXPECT_EQ(Total(*reward, Given("\\boxed{1/2}", "\\frac12", "lighteval/MATH")), 1);
  EXPECT_EQ(Total(*reward, Given("\\boxed{1/2}", "\\frac12", "DigitalLearningGmbH/MATH-lighteval")), 1);
  EXPECT_EQ(Total(*reward, Given("\\boxed{1/2}", "\\frac12", "HuggingFaceH4/MATH-500")), 1);
  EXPECT_EQ(Total(*reward, Given("Answer: 33", "33", "aime2025")), 1);
  const Answer both[] = {Given("\\boxed{1}", "1", "lighteval/MATH"), Given("Answer: 1", "1", "math_dapo")};
  const auto scores = CheckedScore(*reward, both);
  ASSERT_THAT(scores->parts, SizeIs(1));
  EXPECT_EQ(scores->parts[0].rule, "math");
  EXPECT_THAT(scores->parts[0].scores, ElementsAre(1, 1));
}

TEST(MakeReward, WithoutRulesASourceThatNeedsAnotherKindOfRuleIsAnError) {
  const Answer code = Given("print(1)", "[]", "codecontests");
  const absl::Status status = CheckedScore(*Loaded(""), std::span(&code, 1)).status();
  EXPECT_THAT(status,
              Fails(absl::StatusCode::kInvalidArgument, {"\"codecontests\"", "sample 0", "\"What?\"", "reward.regex"}));
}

}  // namespace
}  // namespace tdock::reward
