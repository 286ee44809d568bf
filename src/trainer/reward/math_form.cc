#include "trainer/reward/math_form.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trainer/reward/math_product.h"

namespace tdock::reward {
namespace {

using Kind = MathToken::Kind;

constexpr int kMaxFormDepth = 100;

// Commands that stand between expressions.
constexpr absl::string_view kBetween[] = {
    "\\le",       "\\ge",   "\\ne",       "\\approx", "\\equiv",      "\\cong",   "\\sim",      "\\in",     "\\notin",
    "\\cup",      "\\cap",  "\\setminus", "\\to",     "\\Rightarrow", "\\mapsto", "\\parallel", "\\perp",   "\\subset",
    "\\subseteq", "\\land", "\\lor",      "\\iff",    "\\implies",    "\\pm",     "\\mp",       "\\propto", "\\supset"};
// Commands that stand for a value, and not for a function of what follows.
constexpr absl::string_view kValues[] = {
    "\\pi",    "\\infty",  "\\emptyset", "\\dots",  "\\alpha", "\\beta", "\\gamma",     "\\delta", "\\epsilon",
    "\\theta", "\\phi",    "\\lambda",   "\\mu",    "\\sigma", "\\tau",  "\\omega",     "\\rho",   "\\zeta",
    "\\eta",   "\\xi",     "\\psi",      "\\kappa", "\\nu",    "\\chi",  "\\Omega",     "\\Delta", "\\Gamma",
    "\\Theta", "\\Lambda", "\\Sigma",    "\\Phi",   "\\Psi",   "\\ell",  "\\varepsilon"};

template <size_t N>
bool Contains(const absl::string_view (&names)[N], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// What is between two brackets, or in an argument.
struct Inside {
  std::string text;
  std::optional<Product> product;  // if that is all of it
};

class FormReader {
 public:
  explicit FormReader(std::span<const MathToken> tokens) : tokens_(tokens.begin(), tokens.end()) {}

  std::optional<std::string> Run() {
    std::string form = Relation().text;
    if (too_deep_) return std::nullopt;
    return form;
  }

 private:
  bool AtEnd() const { return at_ >= tokens_.size(); }
  bool Next(absl::string_view symbol) const { return !AtEnd() && tokens_[at_].Is(symbol); }
  bool Take(absl::string_view symbol) {
    if (!Next(symbol)) return false;
    ++at_;
    return true;
  }
  bool NextCloses() const { return Next(")") || Next("]") || Next("}") || Next("\\}"); }
  // Whether an expression cannot go on here.
  bool AtStop() const { return AtEnd() || (brackets_ > 0 && (Next(",") || NextCloses())); }

  bool StartsFactor() const {
    if (AtEnd()) return false;
    const MathToken& token = tokens_[at_];
    if (token.kind == Kind::kCommand) {
      return !Contains(kBetween, token.text) && !absl::StartsWith(token.text, "\\begin{") &&
             !absl::StartsWith(token.text, "\\end{");
    }
    if (token.kind != Kind::kSymbol) return true;
    constexpr absl::string_view kStarts[] = {"(", "[", "{", "\\{", "^", "_", "!", "'"};
    return Contains(kStarts, token.text);
  }

  // Expressions with anything between them, until a stop.
  Inside Relation() {
    Inside relation;
    int pieces = 0;
    while (!AtStop()) {
      const size_t before = at_;
      Inside sum = Sum();
      relation.text += sum.text;
      relation.product = std::move(sum.product);
      ++pieces;
      if (AtStop()) break;
      if (at_ == before || !StartsFactor()) {
        absl::StrAppend(&relation.text, " ", tokens_[at_++].text, " ");
        ++pieces;
      }
    }
    if (pieces > 1) relation.product.reset();
    return relation;
  }

  Inside Sum() {
    std::vector<std::string> terms;
    std::optional<Product> only;
    while (!AtStop()) {
      bool negative = false;
      bool sign = false;
      while (Next("+") || Next("-")) {
        negative ^= Next("-");
        sign = true;
        ++at_;
      }
      const size_t before = at_;
      Product term = Term(negative);
      if (at_ == before) {
        if (sign) terms.push_back(negative ? "-" : "+");
        only.reset();
        break;
      }
      terms.push_back(term.Text());
      only = std::move(term);
      if (!Next("+") && !Next("-")) break;
    }
    if (terms.size() != 1) only.reset();
    std::sort(terms.begin(), terms.end());
    return {absl::StrJoin(terms, " + "), std::move(only)};
  }

  Product Term(bool negative) {
    Product term;
    bool first = true;
    while (!AtStop()) {
      if (Next("/")) {
        if (first) break;
        ++at_;
        std::optional<Product> divisor = SignedFactor();
        if (!divisor) {
          term.Multiply(Product::Factor("/"));
          break;
        }
        term.Divide(*std::move(divisor));
      } else if (Next("*") && !first) {
        ++at_;
        std::optional<Product> factor = SignedFactor();
        if (!factor) {
          term.Multiply(Product::Factor("*"));
          break;
        }
        term.Multiply(*std::move(factor));
      } else if (StartsFactor()) {
        if (!first || (!ScientificNumber(term) && !MixedNumber(term))) Juxtapose(term);
      } else {
        break;
      }
      first = false;
    }
    if (negative) term.Negate();
    return term;
  }

  // What follows an operator: a factor, perhaps with signs. Nullopt, without moving, if none does.
  std::optional<Product> SignedFactor() {
    const size_t begin = at_;
    bool negative = false;
    for (; Next("+") || Next("-"); ++at_) negative ^= Next("-");
    if (!StartsFactor()) {
      at_ = begin;
      return std::nullopt;
    }
    Product factor = Factor();
    if (negative) factor.Negate();
    return factor;
  }

  // Multiplies by the factor that comes next. A number with no operator in front of it may as well be a part of what it
  // follows, as in "1 234", "x1" and "1e5", so it stays apart.
  void Juxtapose(Product& term) {
    const size_t inside = Next("{") ? at_ + 1 : at_;
    const bool number = !term.IsEmpty() && inside < tokens_.size() && tokens_[inside].kind == Kind::kNumber;
    Product factor = Factor();
    term.Multiply(number ? Apart(factor) : std::move(factor));
  }

  static Product Apart(const Product& number) { return Product::Factor(absl::StrCat(" ", number.AsFactor())); }

  bool IsAt(size_t at, absl::string_view symbol) const { return at < tokens_.size() && tokens_[at].Is(symbol); }
  bool IsNumberAt(size_t at) const { return at < tokens_.size() && tokens_[at].kind == Kind::kNumber; }

  // Reads "1.5*10^{3}" into `term`, if it comes next.
  bool ScientificNumber(Product& term) {
    constexpr size_t kMaxExponentDigits = 2;
    if (!IsNumberAt(at_) || !IsAt(at_ + 1, "*")) return false;
    size_t at = at_ + 2;
    const size_t ten_braces = IsAt(at, "{") && IsAt(at + 2, "}") ? 1 : 0;
    at += ten_braces;
    if (!IsNumberAt(at) || tokens_[at].text != "10") return false;
    at += 1 + ten_braces;
    if (!IsAt(at++, "^")) return false;
    const bool braced = IsAt(at, "{");
    if (braced) ++at;
    const bool negative = IsAt(at, "-");
    if (negative) ++at;
    int exponent = 0;
    if (!IsNumberAt(at) || tokens_[at].text.size() > kMaxExponentDigits ||
        !absl::SimpleAtoi(tokens_[at].text, &exponent)) {
      return false;
    }
    ++at;
    if (braced && !IsAt(at++, "}")) return false;
    for (const absl::string_view attached : {"^", "_", "!", "'"}) {
      if (IsAt(at, attached)) return false;
    }
    term.Multiply(Product::Number(ShiftPoint(tokens_[at_].text, negative ? -exponent : exponent)));
    at_ = at;
    return true;
  }

  // Reads "1\frac{1}{2}" and "1 1/2" into `term`, if they come next.
  bool MixedNumber(Product& term) {
    const size_t begin = at_;
    const auto is_whole = [&](size_t i) { return IsNumberAt(i) && !absl::StrContains(tokens_[i].text, '.'); };
    if (!is_whole(begin)) return false;
    const bool command = begin + 1 < tokens_.size() && tokens_[begin + 1].IsCommand("\\frac");
    const bool slash = is_whole(begin + 1) && tokens_[begin + 1].spaced && begin + 2 < tokens_.size() &&
                       tokens_[begin + 2].Is("/") && is_whole(begin + 3);
    if (!command && !slash) return false;
    const MathToken whole = tokens_[begin];
    ++at_;
    Product fraction = Factor();
    if (slash) {
      ++at_;
      fraction.Divide(Factor());
    }
    term.Multiply(Product::Number(whole.text));
    if (!term.AddProperFraction(fraction)) {
      term.Multiply(slash || fraction.IsNumber() ? Apart(fraction) : std::move(fraction));
    }
    return true;
  }

  bool NextIsFunction() const {
    if (AtEnd() || tokens_[at_].kind != Kind::kCommand || !StartsFactor()) return false;
    const std::string& name = tokens_[at_].text;
    const bool in_braces = at_ + 1 < tokens_.size() && tokens_[at_ + 1].Is("{");
    return !in_braces && name != "\\frac" && name != "\\sqrt" && !Contains(kValues, name);
  }

  // A value with what is attached to it: powers, indices, factorials, the argument of a function.
  Product Factor() {
    if (++depth_ > kMaxFormDepth) {
      too_deep_ = true;
      at_ = tokens_.size();
    }
    const bool function = NextIsFunction();
    Product base = Base();
    std::string attached = Attachments();
    if (function) {
      absl::StrAppend(&attached, "(", FunctionArgument().Text(), ")");
      attached += Attachments();  // \ln(2)^2 is not \ln(2^2)
    }
    --depth_;
    if (attached.empty()) return base;
    return Product::Factor(absl::StrCat(base.IsEmpty() ? "" : base.AsFactor(), attached));
  }

  std::string Attachments() {
    std::string attached;
    while (!AtEnd()) {
      if (Take("^")) {
        absl::StrAppend(&attached, "^(", Argument(Digits::kAll).text, ")");
      } else if (Take("_")) {
        absl::StrAppend(&attached, "_(", Argument(Digits::kAll).text, ")");
      } else if (Next("!") || Next("'")) {
        absl::StrAppend(&attached, tokens_[at_++].text);
      } else {
        break;
      }
    }
    return attached;
  }

  // What is in brackets, or all factors without an operator between them: \sin 2x is the sine of 2x.
  Product FunctionArgument() {
    if (Next("(")) return BracketBase();
    if (Next("{") || NextIsFunction()) return Factor();
    Product argument;
    while (StartsFactor() && !Next("(") && !NextIsFunction()) Juxtapose(argument);
    return argument;
  }

  Product Base() {
    if (AtEnd()) return {};
    const MathToken token = tokens_[at_];
    if (token.kind == Kind::kSymbol) return BracketBase();
    ++at_;
    if (token.kind == Kind::kNumber) return Product::Number(token.text);
    if (token.kind == Kind::kCommand) return CommandBase(token.text);
    if (token.kind == Kind::kText) {
      Product word;
      for (const char c : token.text) {
        if (c != ' ') word.Multiply(Product::Factor(std::string(1, c)));
      }
      return word;
    }
    const char letter = token.text[0];
    const bool applied =
        Next("(") && (absl::ascii_isupper(static_cast<unsigned char>(letter)) || absl::StrContains("fgh", letter));
    return Product::Factor(applied ? absl::StrCat(token.text, Brackets().text) : token.text);
  }

  Product BracketBase() {
    if (Next("{") || Next("(")) {
      Inside group = Brackets();
      return group.product ? *std::move(group.product) : Product::Factor(std::move(group.text));
    }
    if (Next("[") || Next("\\{")) return Product::Factor(Brackets().text);
    return {};  // something attached to nothing
  }

  Product CommandBase(const std::string& command) {
    if (command == "\\frac") {
      Inside above = Argument(Digits::kFirst);
      Inside below = Argument(Digits::kFirst);
      Product fraction = above.product ? *std::move(above.product) : Product::Factor(std::move(above.text));
      fraction.Divide(below.product ? *std::move(below.product) : Product::Factor(std::move(below.text)));
      return fraction;
    }
    if (command == "\\sqrt") {
      std::string degree;
      if (Next("[")) degree = Brackets().text;
      return Product::Factor(absl::StrCat("\\sqrt", degree, "(", Argument(Digits::kFirst).text, ")"));
    }
    if (Contains(kValues, command)) return Product::Factor(command);
    std::string applied = command;
    while (Next("{")) absl::StrAppend(&applied, "(", Argument(Digits::kAll).text, ")");
    return Product::Factor(applied);
  }

  enum class Braces { kSet, kArgument };
  // The brackets that come next, and what is in them. A set is sorted; the text of a group in round or curly brackets
  // is in round ones. `braces` says what several items in { and } are.
  Inside Brackets(Braces braces = Braces::kSet) {
    const std::string open = tokens_[at_++].text;
    ++brackets_;
    std::vector<std::string> items;
    Inside only;
    while (!AtEnd()) {
      only = Relation();
      items.push_back(only.text);
      if (!Next(",")) break;
      const MathToken::Join join = tokens_[at_++].join;
      if (join != MathToken::Join::kComma) items.back() += join == MathToken::Join::kAnd ? " and" : " or";
    }
    --brackets_;
    std::string close;
    if (NextCloses()) close = tokens_[at_++].text;
    const bool set = open == "\\{" || (open == "{" && items.size() > 1 && braces == Braces::kSet);
    if (set) {
      std::sort(items.begin(), items.end());
      items.erase(std::unique(items.begin(), items.end()), items.end());
      return {absl::StrCat("{", absl::StrJoin(items, ", "), "}"), std::nullopt};
    }
    Inside inside{absl::StrCat(open == "{" ? "(" : open, absl::StrJoin(items, ", "), close == "}" ? ")" : close),
                  std::nullopt};
    const bool group = items.size() == 1 && (open == "{" || close == ")") && open != "[";
    if (group) inside.product = std::move(only.product);
    return inside;
  }

  enum class Digits { kFirst, kAll };
  // Of a command, or of ^ and _: what is in braces, or the next token, of which `digits` says how much of a number:
  // \frac12 has two arguments, x^12 means one.
  Inside Argument(Digits digits) {
    if (AtEnd()) return {};
    Product argument;
    if (digits == Digits::kAll && Take("-")) {
      argument = Attached();
      argument.Negate();
    } else if (Next("{")) {
      return Contents();
    } else if (MathToken& token = tokens_[at_]; digits == Digits::kFirst && token.kind == Kind::kNumber &&
                                                token.text.size() > 1 && token.text[0] != '.') {
      argument = Product::Number(token.text.substr(0, 1));
      token.text.erase(0, 1);
    } else if (StartsFactor()) {
      argument = Attached();
    } else {
      return {};
    }
    return {argument.Text(), argument};
  }

  Product Attached() {
    if (++depth_ > kMaxFormDepth) {
      too_deep_ = true;
      at_ = tokens_.size();
    }
    Product base = Base();
    --depth_;
    return base;
  }

  // Of the braces that come next, without them.
  Inside Contents() {
    if (++depth_ > kMaxFormDepth) {
      too_deep_ = true;
      at_ = tokens_.size();
      return {};
    }
    Inside inside = Brackets(Braces::kArgument);
    --depth_;
    if (inside.product) inside.text = inside.product->Text();
    return inside;
  }

  std::vector<MathToken> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int brackets_ = 0;
  bool too_deep_ = false;
};

}  // namespace

std::optional<std::string> MathForm(std::span<const MathToken> tokens) { return FormReader(tokens).Run(); }

bool IsValueCommand(absl::string_view command) { return Contains(kValues, command); }

}  // namespace tdock::reward
