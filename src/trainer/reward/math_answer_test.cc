#include "trainer/reward/math_answer.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace tdock::reward {
namespace {

struct AnswerCase {
  const char* a;
  const char* b;
  bool same;
};

constexpr AnswerCase kNumberCases[] = {
    {"5", "5", true},
    {"5", "6", false},
    {"5", "-5", false},
    {"", "5", false},
    {" 5 ", "5", true},
    {"5.", "5", true},
    {"+5", "5", true},
    {"−5", "-5", true},
    {"$5$", "5", true},
    {"\\$5", "5", true},
    {"\\(5\\)", "5", true},
    {"(5)", "5", true},
    {"{5}", "5", true},
    {"05", "5", true},
    {"5.0", "5", true},
    {"5.00", "5.0", true},
    {".5", "0.5", true},
    {"0.50", ".5", true},
    {"0.5", "5", false},
    {"1,000", "1000", true},
    {"1{,}000", "1000", true},
    {"1,\\!000", "1000", true},
    {"1\\,000", "1000", true},
    {"12,345,678.90", "12345678.9", true},
    {"1,00", "100", false},
    {"\\frac{1}{2}", "1/2", true},
    {"\\frac12", "1/2", true},
    {"\\frac1{2}", "1/2", true},
    {"\\frac{1}2", "1/2", true},
    {"\\dfrac{1}{2}", "\\tfrac12", true},
    {"\\frac{1}{2}", "0.5", true},
    {"\\frac{2}{4}", "\\frac{1}{2}", true},
    {"\\frac{1}{2}", "\\frac{1}{3}", false},
    {"\\frac{1}{2}", "\\frac{2}{1}", false},
    {"1/3", "0.333", false},
    {"\\frac{-1}{2}", "-\\frac{1}{2}", true},
    {"\\frac{1}{-2}", "-\\frac{1}{2}", true},
    {"-0.5", "-\\frac12", true},
    {"\\frac{6}{2}", "3", true},
    {"\\frac{1}{0}", "0", false},
    {"\\frac{13}{4}", "3.25", true},
    {"3\\frac{1}{4}", "\\frac{13}{4}", true},
    {"3 1/4", "13/4", true},
    {"-3\\frac14", "-3.25", true},
    {"31/4", "3 1/4", false},
    {"123456789012345678901234567890", "123,456,789,012,345,678,901,234,567,890", true},
    {"123456789012345678901234567890", "123456789012345678901234567891", false},
    {"00123456789012345678901234567890.50", "123456789012345678901234567890.5", true},
    {"9223372036854775807", "9223372036854775807.0", true},
    {"9223372036854775807", "9223372036854775808", false},
    {"\\frac{9223372036854775807}{9223372036854775806}", "1", false},
    {"3+4", "7", false},
    {"2\\cdot3", "6", false},
    {"2^{10}", "1024", false},
    {"\\sqrt{4}", "2", false},
    {"5!", "120", false},
    {"5!", "5", false},
    {"101_2", "101_{2}", true},
    {"101_2", "101", false},
    {"3:4", "3 : 4", true},
    {"0.\\overline{3}", "0.3", false},
    {"2\\cdot -3", "2-3", false},
    {"2\\cdot -3", "2(-3)", true},
    {"5\\cdot", "5", false},
    {"5\\cdot -", "5", false},
    {"x**2", "2x", false},
    {"x/-2", "-\\frac{x}{2}", true},
    {"x/-2", "x-2", false},
    {"1 234", "234", false},
    {"1 234", "1234", false},
    {"1 \\quad 2", "2", false},
    {"1{2}", "2", false},
    {"5 1", "5", false},
    {"x1", "x", false},
    {"\\sin x1", "\\sin x", false},
    {"1e5", "5e", false},
    {"1e5", "e5", false},
    {"1e5", "100000", true},
    {"1.25e1", "12.5", true},
    {"1.25e3", "1,250", true},
    {"2e+3", "2000", false},
    {"1.50\\times10^{3}", "1500", true},
    {"1.5 \\cdot 10^{3}", "1{,}500", true},
    {"1.5×10^3", "1,500", true},
    {"1.5*10^3", "1\\,500", true},
    {"1.5\\times10^{3}", "1.5e3", true},
    {"15\\times10^2", "1.5\\times 10^{3}", true},
    {"1,500\\times10^{0}", "1500", true},
    {"1.5\\times{10}^{-3}", "0.0015", true},
    {"-2\\times10^-2", "-0.02", true},
    {"1\\times10^{25}", "10,000,000,000,000,000,000,000,000", true},
    {"1.5\\times10^{3}x", "1500x", true},
    {"\\frac{1.5\\times10^{3}}{2}", "750", true},
    {"2^{1.5\\times10^1}", "2^{15}", true},
    {"3+1.5\\times10^{3}", "3+1500", true},
    {"1.5\\times10^{3}", "150", false},
    {"1.5\\times10^{3}", "-1500", false},
    {"1.5\\times10^{-3}", "1500", false},
    {"1.5\\times10^{3}", "1.5", false},
    {"1.5\\times100^{3}", "1500", false},
    {"1.5\\times10^{n}", "1.5\\times10^{1}", false},
    {"1.5\\times10^{3", "1500", false},
    {"10^{3}", "1000", false},
    {"2^3\\cdot10^2", "2^{300}", false},
    {"\\frac12\\cdot10^3", "\\frac{1}{2000}", false},
    {"1/2\\cdot10^3", "1/2000", false},
    {"2\\cdot10^3!", "2000!", false},
    {"2\\cdot10^{3}^{2}", "2000^2", false},
    {"a_{1,234}", "a_{1234}", false},
    {"a_{1,234}", "a_{1, 234}", true},
    {"a_{1} + 1,234", "a_1 + 1234", true},
    {"2 abcd", "2", false},
    {"2 abcd", "2abcd", true},
    {"2 wxyz", "2", false},
    {"2 apples", "2", true},
    {"1\\frac{3}{2}", "\\frac{3}{2}", false},
    {"1 3/2", "3/2", false},
};

constexpr AnswerCase kExpressionCases[] = {
    {"\\sqrt2", "\\sqrt{2}", true},
    {"\\sqrt{2}", "\\sqrt{3}", false},
    {"√2", "\\sqrt{2}", true},
    {"sqrt(2)", "\\sqrt{2}", true},
    {"\\sqrt[3]{2}", "\\sqrt{2}", false},
    {"2\\sqrt3", "2\\sqrt{3}", true},
    {"\\sqrt{12}", "2\\sqrt{3}", false},
    {"\\frac{\\sqrt3}{2}", "\\sqrt{3}/2", true},
    {"\\frac{\\sqrt{3}}{2}", "\\frac{1}{2}\\sqrt{3}", true},
    {"\\frac{\\sqrt{3}}{2}", "\\frac{\\sqrt{2}}{3}", false},
    {"\\frac{2}{\\sqrt{3}}", "2/\\sqrt3", true},
    {"\\frac{1+\\sqrt{5}}{2}", "\\dfrac{\\sqrt5 + 1}{2}", true},
    {"\\frac{1+\\sqrt{5}}{2}", "1+\\frac{\\sqrt{5}}{2}", false},
    {"\\left(\\frac12\\right)^2", "(\\frac{1}{2})^{2}", true},
    {"\\pi", "π", true},
    {"2\\pi", "2 \\pi", true},
    {"2\\pi", "2\\cdot\\pi", true},
    {"2\\pi", "2pi", true},
    {"\\frac{\\pi}{2}", "\\pi/2", true},
    {"\\frac{\\pi}{2}", "0.5\\pi", true},
    {"\\sqrt{2}\\pi", "\\pi\\sqrt{2}", true},
    {"\\pi", "3.14", false},
    {"x^2", "x^{2}", true},
    {"x^2", "x^3", false},
    {"x^{10}", "x^10", true},
    {"x^2", "2x", false},
    {"2x+1", "1+2x", true},
    {"2x+1", "2x-1", false},
    {"x-1", "1-x", false},
    {"-x+1", "1-x", true},
    {"x^2+2x+1", "1 + 2x + x^2", true},
    {"(x+1)(x+2)", "(x + 1) (x + 2)", true},
    {"(x+1)(x+2)", "x^2+3x+2", false},
    {"x/2", "\\frac{1}{2}x", true},
    {"x/2", "2/x", false},
    {"\\frac{x+1}{2}", "(x+1)/2", true},
    {"a_1", "a_{1}", true},
    {"a_1", "a_2", false},
    {"\\sin 2x", "\\sin(2x)", true},
    {"\\sin 2x", "2\\sin x", false},
    {"\\sin\\frac{x}{2}", "\\frac{\\sin x}{2}", false},
    {"\\sin x\\cos y", "\\sin y\\cos x", false},
    {"\\log_2 8", "\\log_{2}(8)", true},
    {"f(g(x))", "g(f(x))", false},
    {"3+2i", "2i+3", true},
    {"3+2i", "3-2i", false},
    {"|x|", "\\left|x\\right|", true},
    {"|x|", "x", false},
    {"x \\le 5", "x\\leq5", true},
    {"x \\le 5", "x \\ge 5", false},
    {"x < 5", "x \\lt 5", true},
    {"\\binom{5}{2}", "\\binom{5}{3}", false},
    {"\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{bmatrix} 1 & 2 \\\\ 3 & 4 \\end{bmatrix}", true},
    {"\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}2\\\\1\\end{pmatrix}", false},
    {"\\begin{pmatrix} -1/3 \\\\ 2/3 \\end{pmatrix}", "\\begin{pmatrix} -\\frac13 \\\\[4pt] \\frac23 \\end{pmatrix}",
     true},
    {"2(x+1)", "2x+2", false},
    {"a/b/c", "a/(b/c)", false},
    {"a-b-c", "a-(b-c)", false},
    {"-x^2", "(-x)^2", false},
    {"2/(x+1)", "2/x+1", false},
    {"\\sin x^2", "\\sin^2 x", false},
    {"\\cos^2 x", "\\cos^{2}(x)", true},
    {"\\frac{x^2}{4}-\\frac{y^2}{9}=1", "\\dfrac{x^{2}}{4} - \\dfrac{y^{2}}{9} = 1", true},
    {"f'(x)", "f(x)", false},
    {"\\ln(2)^2", "\\ln(2^2)", false},
    {"\\ln(2)^2", "\\ln\\left(2\\right)^{2}", true},
    {"\\ln(2)!", "\\ln(2!)", false},
    {"a_{1,2}", "a_{2,1}", false},
    {"a_{1,1}", "a_{1}", false},
    {"a_{1,2}", "a_{1, 2}", true},
    {"\\max{1,2}", "\\max{2,1}", false},
    {"2 sinx", "2", false},
    {"2 sqrt(3)", "2(3)", false},
    {"2 cotx", "2", false},
    {"AB", "BA", false},
};

constexpr AnswerCase kUnitCases[] = {
    {"5\\text{ cm}", "5", true},
    {"5 cm", "5\\mathrm{cm}", true},
    {"5\\text{ cm}", "5\\text{ centimeters}", true},
    {"5 cm", "5 mm", false},
    {"5 cm", "6 cm", false},
    {"12\\text{ cm}^2", "12\\text{ square centimeters}", true},
    {"12\\text{ cm}^2", "12 cm^{2}", true},
    {"12\\text{ cm}^2", "12\\text{ cm}", false},
    {"12\\text{ cm}^2", "12", true},
    {"10\\text{ inches}", "10 in", true},
    {"60\\text{ miles per hour}", "60 mph", true},
    {"60\\text{ m/s}", "60 m/s", false},
    {"3\\times10^8\\text{ m/s}", "300,000,000\\text{ m/s}", true},
    {"\\$1.5\\times10^{3}", "\\$1,500", true},
    {"5\\text{ apples}", "5", true},
    {"5\\text{ units}", "5\\text{ square units}", true},
    {"5 apples", "5\\text{ apples}", true},
    {"3\\text{ AM}", "3\\text{ PM}", false},
    {"30^\\circ", "30", true},
    {"30^{\\circ}", "30°", true},
    {"30^\\circ", "30\\text{ degrees}", true},
    {"30^\\circ", "60^\\circ", false},
    {"\\sin 30^\\circ", "\\sin 30", true},
    {"50\\%", "50", true},
    {"50%", "50\\%", true},
    {"50\\%", "0.5", false},
    {"50\\%", "50\\text{ percent}", true},
    {"\\$1,000", "1000\\text{ dollars}", true},
    {"5\\,\\text{m}^2", "5\\mathrm{~m}^{2}", true},
    {"\\mathrm{5~m/s}", "5\\text{ m/s}", true},
    {"98.6^\\circ\\text{F}", "98.6", true},
    {"18\\sqrt{2}\\text{ square units}", "18\\sqrt2", true},
    {"\\angle ABC = 60^\\circ", "60", true},
    {"5m", "5", false},
    {"x=5", "5", true},
    {"x = 5", "x=5", true},
    {"x=5", "y=5", false},
    {"y=3", "x=3", false},
    {"f(x)=2x", "2x", true},
    {"x \\in [1,2]", "[1,2]", true},
    {"2x=5", "5", false},
    {"x+y=5", "5", false},
    {"\\theta = \\frac{\\pi}{4}", "\\pi/4", true},
    {"\\ln y = 2x", "2x", false},
    {"\\pi r = 5", "5", false},
    {"x_1 x_2 = 5", "5", false},
    {"f(x)g(x) = 5", "5", false},
    {"x_1 = 5", "5", true},
    {"\\triangle ABC = 6", "6", true},
    {"A\\text{ or B}", "A", false},
    {"A\\text{ cm}", "A", false},
    {"5\\text{ million}", "5", false},
    {"5\\text{ or more}", "5", false},
    {"5\\text{ dozen eggs}", "5", false},
    {"€5", "£5", false},
    {"€5", "\\$5", false},
    {"€5", "$5", false},
    {"€5", "5\\text{ euros}", true},
    {"€5", "5", true},
    {"-\\$5", "-5", true},
    {"$5", "5", true},
    {"\\$5", "5\\text{ cents}", false},
    {"\\$5\\text{ dollars}", "\\$5", true},
    {"f^\\circ(x)", "f(x)", false},
    {"\\sin 30^\\circ + 1", "\\sin 30 + 1", true},
};

constexpr AnswerCase kListCases[] = {
    {"(1,2)", "(1, 2)", true},
    {"(1,2)", "(2,1)", false},
    {"(1,2)", "12", false},
    {"(1,2)", "1,2", false},
    {"(1,234)", "1234", false},
    {"(1.5\\times10^3, 2)", "(1500, 2)", true},
    {"\\left(\\frac12,3\\right)", "(0.5, 3.0)", true},
    {"(x,y)=(1,2)", "(1,2)", true},
    {"(30^\\circ, 60^\\circ)", "(30,60)", true},
    {"[1,2)", "[1, 2)", true},
    {"[1,2)", "(1,2)", false},
    {"[1,2)", "[1,2]", false},
    {"(-\\infty, 3]", "\\left(-\\infty,3\\right]", true},
    {"(-\\infty,3)\\cup(5,\\infty)", "(-\\infty, 3) ∪ (5, ∞)", true},
    {"(-\\infty,3)\\cup(5,\\infty)", "(-\\infty,3)", false},
    {"\\{1,2\\}", "\\{2,1\\}", true},
    {"\\{1,2\\}", "\\left\\{ 1, 2 \\right\\}", true},
    {"\\{1,2\\}", "{1,2}", true},
    {"\\{1,2\\}", "\\{1,3\\}", false},
    {"\\{1,2\\}", "\\{1,1,2\\}", true},
    {"\\{1,2\\}", "1, 2", true},
    {"\\{1,2\\}", "(1,2)", false},
    {"\\{1,2\\}", "12", false},
    {"\\emptyset", "\\{\\}", true},
    {"\\varnothing", "0", false},
    {"1,2", "2, 1", true},
    {"1,2", "1,2,3", false},
    {"1,1,2", "1,2", false},
    {"1 \\text{ and } 2", "1,2", true},
    {"1 or 2", "1, 2", true},
    {"x=1, x=2", "1,2", true},
    {"x=1, y=2", "x=2, y=1", false},
    {"x=1,2", "x=2, x=1", true},
    {"\\pm 2", "2, -2", true},
    {"1\\pm\\sqrt{2}", "1+\\sqrt2, 1-\\sqrt2", true},
    {"\\frac{1\\pm\\sqrt5}{2}", "\\frac{1-\\sqrt5}{2}, \\frac{1+\\sqrt5}{2}", true},
    {"\\pm 2", "2", false},
    {"A, B, C", "C, B, A", false},
    {"A, B, C", "A,B,C", true},
    {"(1,2),(3,4)", "(3,4),(1,2)", true},
    {"(A)", "A", true},
    {"\\text{(A)}", "a", true},
    {"\\textbf{(A) }", "A", true},
    {"A", "B", false},
    {"\\text{Evelyn}", "Evelyn", true},
    {"\\text{Yes}", "yes", true},
    {"Yes", "No", false},
    {"\\text{even}", "\\text{odd}", false},
    {"\\text{June 20}", "June 20", true},
    {"\\text{June 20}", "June 21", false},
    {"1, \\frac{-1 \\pm i\\sqrt{3}}{2}", "\\frac{-1+i\\sqrt3}{2}, 1, \\frac{-1-\\sqrt3 i}{2}", true},
    {"\\mathbf{v}", "v", true},
    {"x=1, y=2", "2, 1", false},
    {"x=1, y=2", "1, 2", true},
    {"x=1, y=2", "\\{1, 2\\}", false},
    {"x=1, y=2", "y=2, x=1", true},
    {"x=1, y=2", "x=1 \\text{ and } y=2", true},
    {"x=1, y=2", "x=1 \\text{ or } y=2", false},
    {"x>1 \\text{ and } x<5", "x>1 \\text{ or } x<5", false},
    {"x>1 \\text{ and } x<5", "x<5 \\text{ and } x>1", true},
    {"x>1 or x<5", "x>1 \\text{ or } x<5", true},
    {"(x>1 and x<5)", "(x>1 or x<5)", false},
    {"x+y=1 and x-y=1", "x+y=1 or x-y=1", false},
    {"x=1 or x=2", "x=1 and x=2", true},
    {"No", "no", false},
    {"xY", "xy", false},
};

template <size_t N>
void CheckCases(const AnswerCase (&cases)[N]) {
  for (const AnswerCase& c : cases) {
    EXPECT_EQ(SameMathAnswer(c.a, c.b), c.same) << c.a << "   and   " << c.b;
    EXPECT_EQ(SameMathAnswer(c.b, c.a), c.same) << c.b << "   and   " << c.a;
    EXPECT_TRUE(SameMathAnswer(c.a, c.a)) << c.a;
  }
}

TEST(SameMathAnswer, ComparesNumbersExactly) { CheckCases(kNumberCases); }
TEST(SameMathAnswer, ComparesExpressionsByTheirForm) { CheckCases(kExpressionCases); }
TEST(SameMathAnswer, LetsUnitsAndNamesBeLeftOutButNotDiffer) { CheckCases(kUnitCases); }
TEST(SameMathAnswer, KnowsWhereTheOrderMatters) { CheckCases(kListCases); }

std::string Repeated(const std::string& text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all.append(text);
  return all;
}

TEST(SameMathAnswer, SurvivesHostileInput) {
  const char* const pieces[] = {
      "{",    "}",  "(",     "\\{", "\\",   "\\frac", "\\sqrt",   "^", "_",      "\\text{",  "-",  ",", "$",   "1,",
      "\\pm", "1/", "\\sin", "x=",  "\xFF", "\\(",    "^{\\circ", "!", "\\sin(", "\\begin{", "1 ", "|", "cm ", "9"};
  for (const char* piece : pieces) {
    for (const size_t times : {1, 2, 3, 99, 101, 1500, 9000}) {
      const std::string text = Repeated(piece, times);
      EXPECT_FALSE(SameMathAnswer(text, "77")) << piece << " " << times;
      EXPECT_TRUE(SameMathAnswer(text, text));
      SameMathAnswer(text + "1", "1" + text);
      SameMathAnswer(absl::StrCat(text, "1", Repeated("}", times)), absl::StrCat(text, "2", Repeated("}", times)));
    }
  }
  const std::string huge(10 << 20, '{');
  EXPECT_TRUE(SameMathAnswer(huge, huge + " "));
  EXPECT_FALSE(SameMathAnswer(huge, huge + "1"));
}

TEST(SameMathAnswer, ReadsWhatIsNestedWithinReason) {
  const std::string deep = Repeated("(", 90) + "x+1" + Repeated(")", 90);
  EXPECT_TRUE(SameMathAnswer(deep, Repeated("\\left(", 90) + "1 + x" + Repeated("\\right)", 90)));
  const std::string deeper = Repeated("(", 200) + "5" + Repeated(")", 200);
  EXPECT_FALSE(SameMathAnswer(deeper, "5"));
}

TEST(LastBoxed, IsWhatTheLastBoxHolds) {
  EXPECT_EQ(LastBoxed("so \\boxed{5}."), "5");
  EXPECT_EQ(LastBoxed("\\boxed{4}, no: \\boxed{ 5 } it is"), "5");
  EXPECT_EQ(LastBoxed("\\fbox{7}"), "7");
  EXPECT_EQ(LastBoxed("\\boxed {7}"), "7");
  EXPECT_EQ(LastBoxed("\\boxed{\\frac{1}{\\sqrt{2}}} and {more}"), "\\frac{1}{\\sqrt{2}}");
  EXPECT_EQ(LastBoxed("\\boxed{\\{1, 2\\}}"), "\\{1, 2\\}");
  EXPECT_EQ(LastBoxed("\\boxed{\\left\\{ x \\right.}"), "\\left\\{ x \\right.");
  EXPECT_EQ(LastBoxed("\\boxed{x = \\boxed{5}}"), "5");
  EXPECT_EQ(LastBoxed("} \\boxed{5} {"), "5");
  EXPECT_EQ(LastBoxed("{ \\boxed{}"), "");
}

TEST(LastBoxed, IsNothingWithoutOneThatIsClosed) {
  EXPECT_EQ(LastBoxed(""), std::nullopt);
  EXPECT_EQ(LastBoxed("boxed{5}"), std::nullopt);
  EXPECT_EQ(LastBoxed("\\boxed 5"), std::nullopt);
  EXPECT_EQ(LastBoxed("\\boxed{5"), std::nullopt);
  EXPECT_EQ(LastBoxed("\\boxed{4} or \\boxed{\\frac{1}{2}"), std::nullopt) << "cut off in the last box";
}

TEST(LastBoxed, IsLinearInHostileText) {
  for (const char* piece : {"\\boxed{", "{", "}", "\\", "\\boxed", "\\boxed ", "\\boxed{}"}) {
    const std::string text = Repeated(piece, (10 << 20) / std::string(piece).size());
    const auto boxed = LastBoxed(text);
    EXPECT_TRUE(!boxed || boxed->empty()) << piece;
  }
}

TEST(LastAnswerLine, IsWhatFollowsTheLastOne) {
  EXPECT_EQ(LastAnswerLine("Answer: 4\nAnswer:  \\frac12 \nbye"), "\\frac12");
  EXPECT_EQ(LastAnswerLine("my answer is\n**Answer:** 5"), "5");
  EXPECT_EQ(LastAnswerLine("**ANSWER**: 5**"), "5");
  EXPECT_EQ(LastAnswerLine("my answer is 5"), std::nullopt);
  EXPECT_EQ(LastAnswerLine("Answer:"), std::nullopt);
  EXPECT_EQ(LastAnswerLine(Repeated("answer ", 1 << 20)), std::nullopt);
  EXPECT_EQ(LastAnswerLine(Repeated("answer*", 1 << 20)), std::nullopt);
}

}  // namespace
}  // namespace tdock::reward
