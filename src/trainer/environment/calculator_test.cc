#include "trainer/environment/calculator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/base/testing/fails.h"
#include "text/replies/reply_parser.h"
#include "trainer/environment/arithmetic.h"

namespace tdock::environment {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

std::string ValueOf(const std::string& expression) {
  const absl::StatusOr<std::string> value = Evaluate(expression);
  return value.ok() ? *value : value.status().ToString();
}

TEST(Arithmetic, IsExact) {
  EXPECT_EQ(ValueOf("37*24"), "888");
  EXPECT_EQ(ValueOf(" 2 + 3 * (4 - 6) / 4 "), "0.5");
  EXPECT_EQ(ValueOf("0.1 + 0.2"), "0.3");
  EXPECT_EQ(ValueOf("1/3"), "1/3");
  EXPECT_EQ(ValueOf("1/3*3"), "1");
  EXPECT_EQ(ValueOf("--3 - -(.5)"), "3.5");
  EXPECT_EQ(ValueOf("-1/8"), "-0.125");
  EXPECT_EQ(ValueOf("8-3-2"), "3");
  EXPECT_EQ(ValueOf("16/4/2"), "2");
  EXPECT_EQ(ValueOf("1,234,567 + 1"), "1234568");
  EXPECT_EQ(ValueOf("9223372036854775807"), "9223372036854775807");
  EXPECT_EQ(ValueOf("0*-5"), "0");
}

TEST(Arithmetic, SaysWhatItCannotCompute) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> expressions = {
      {"1/(3-3)", {"by zero"}},
      {"9223372036854775807+1", {"too large"}},
      {"99999999999999999999", {"too large"}},
      {"", {"not complete"}},
      {"(1+2", {"not complete"}},
      {"3+*4", {"\"*\"", "position 3"}},
      {"3 4", {"\"4\"", "position 3"}},
      {"3×4", {"\"×\"", "position 2"}},
      {std::string("3\0", 2), {"\"\\x00\"", "position 2"}},
      {std::string(51, '('), {"50 levels"}},
      {std::string(1001, '1'), {"1000 bytes"}},
  };
  for (const auto& [expression, names] : expressions) {
    EXPECT_THAT(Evaluate(expression).status(), Fails(absl::StatusCode::kInvalidArgument, names)) << expression;
  }
}

class CalculatorTest : public testing::Test {
 protected:
  void Begin(TurnFormat format, const std::string& truth) {
    calculator_ = *MakeBuiltInEnvironment("calculator", format);
    tools_ = calculator_->Start()->tools;
    calculator_->Reset(1, 0, {.prompt = "p", .truth = truth});
    EXPECT_THAT(Next().messages, IsEmpty());
  }
  Observation Step(const text::Turn& turn) {
    calculator_->Step(1, turn);
    return Next();
  }
  Observation Says(const std::string& text) { return Step(*text::ReadModelTurn({}, text)); }
  Observation Next() {
    const absl::StatusOr<std::vector<Event>> events = calculator_->Wait(absl::InfinitePast());
    EXPECT_TRUE(events.ok() && events->size() == 1) << events.status();
    return std::get<Observation>(*(*events)[0].what);
  }

  std::unique_ptr<Environment> calculator_;
  std::string tools_;
};

TEST_F(CalculatorTest, AnswersWhatATextEndsWithInBrackets) {
  Begin(TurnFormat::kText, "888");
  EXPECT_EQ(tools_, "");
  const Observation answer = Says("I compute [37*24]\n");
  EXPECT_THAT(answer.messages, ElementsAre(text::Turn{.role = text::Role::kUser, .content = "888"}));
  EXPECT_FALSE(answer.done);
  EXPECT_THAT(answer.rewards, IsEmpty());
  EXPECT_THAT(Says("[1/0]").messages[0].content, Mentions({"error: ", "by zero"}));
  const Observation last = Says("It is 888.");
  EXPECT_TRUE(last.done);
  EXPECT_THAT(last.messages, IsEmpty());
  EXPECT_THAT(last.rewards, ElementsAre(Pair("correct", 1)));
  calculator_->Step(1, {.content = "[1]"});  // it is over
  EXPECT_EQ(calculator_->Wait(absl::InfinitePast()).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(CalculatorTest, AWrongOrMissingNumberIsNotCorrect) {
  for (const char* said : {"It is 887.", "I do not know", "[888] is it", "888]", "888, no, 889"}) {
    Begin(TurnFormat::kText, "#### 888");
    const Observation last = Says(said);
    EXPECT_TRUE(last.done) << said;
    EXPECT_THAT(last.rewards,
                ElementsAre(Pair("correct", std::string(said).find("888]") == std::string::npos ? 0 : 1)));
  }
}

TEST_F(CalculatorTest, IsATool) {
  Begin(TurnFormat::kChat, "3.50");
  EXPECT_THAT(tools_, HasSubstr(R"("name":"calculator")"));
  const Observation answer = Says(R"(<tool_call>{"name": "calculator", "arguments": {"expression": "7/2"}}</tool_call>)"
                                  R"(<tool_call>{"name": "search", "arguments": {}}</tool_call>)"
                                  R"(<tool_call>{"name": "calculator", "arguments": {"expr": "7/2"}}</tool_call>)");
  ASSERT_EQ(answer.messages.size(), 3U);
  EXPECT_EQ(answer.messages[0], (text::Turn{.role = text::Role::kTool,
                                            .content = "3.5",
                                            .fields = R"({"name":"calculator","tool_call_id":"call_0"})"}));
  EXPECT_THAT(answer.messages[1].content, Mentions({"error: ", "\"search\"", "\"calculator\""}));
  EXPECT_THAT(answer.messages[2].content, Mentions({"error: ", "\"expression\""}));
  const Observation last = Says("So it is 3.5 [7/2]");  // the brackets ask for nothing
  EXPECT_THAT(last.messages, IsEmpty());
  EXPECT_THAT(last.rewards, ElementsAre(Pair("correct", 1)));
}

TEST(BuiltIn, AnotherNameIsNotFound) {
  EXPECT_THAT(MakeBuiltInEnvironment("abacus", TurnFormat::kText).status(),
              Fails(absl::StatusCode::kNotFound, {"\"abacus\"", "calculator"}));
}

}  // namespace
}  // namespace tdock::environment
