#include "trainer/reward/math_tokens.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "core/base/utf8.h"
#include "trainer/reward/exact_number.h"
#include "trainer/reward/math_units.h"

namespace tdock::reward {
namespace {

using Kind = MathToken::Kind;
using Synonym = std::pair<absl::string_view, absl::string_view>;

constexpr int kMaxTextDepth = 4;

bool IsAlphaAt(absl::string_view text, size_t at) {
  return at < text.size() && absl::ascii_isalpha(static_cast<unsigned char>(text[at]));
}

template <size_t N>
bool IsOneOf(const absl::string_view (&names)[N], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

template <size_t N>
std::optional<absl::string_view> FindSynonym(const Synonym (&synonyms)[N], absl::string_view name) {
  for (const Synonym& synonym : synonyms) {
    if (synonym.first == name) return synonym.second;
  }
  return std::nullopt;
}

// Names of commands, without their backslash.
constexpr absl::string_view kSpaces[] = {",", ";", ":", "!", ">", " ", "quad", "qquad", "thinspace", "enspace"};
constexpr absl::string_view kLooks[] = {
    "left",       "right",  "big",         "Big",      "bigl",   "bigr",         "Bigl",      "Bigr", "bigg",
    "Bigg",       "biggl",  "biggr",       "middle",   "limits", "displaystyle", "rm",        "bf",   "it",
    "boldsymbol", "mathbf", "scriptstyle", "nolimits", "mathit", "mathcal",      "textstyle", "(",    ")",
    "[",          "]",      "ensuremath",  "boxed",    "fbox",   "underline"};
constexpr absl::string_view kTexts[] = {"text", "textbf", "textit", "textrm", "textsf", "texttt",      "textnormal",
                                        "mbox", "hbox",   "mathrm", "mathsf", "mathtt", "operatorname"};
// What starts with a backslash here is a command, the rest a symbol.
constexpr Synonym kCommands[] = {
    {"dfrac", "\\frac"},
    {"tfrac", "\\frac"},
    {"cfrac", "\\frac"},
    {"leq", "\\le"},
    {"leqslant", "\\le"},
    {"geq", "\\ge"},
    {"geqslant", "\\ge"},
    {"neq", "\\ne"},
    {"lt", "<"},
    {"gt", ">"},
    {"cdot", "*"},
    {"times", "*"},
    {"ast", "*"},
    {"div", "/"},
    {"varnothing", "\\emptyset"},
    {"infin", "\\infty"},
    {"lbrace", "\\{"},
    {"rbrace", "\\}"},
    {"{", "\\{"},
    {"}", "\\}"},
    {"lbrack", "["},
    {"rbrack", "]"},
    {"lparen", "("},
    {"rparen", ")"},
    {"mid", "|"},
    {"vert", "|"},
    {"lvert", "|"},
    {"rvert", "|"},
    {"|", "|"},
    {"colon", ":"},
    {"%", "%"},
    {"#", "#"},
    {"&", "&"},
    {"_", "_"},
    {"\\", "\\\\"},
    {"ldots", "\\dots"},
    {"cdots", "\\dots"},
    {"rightarrow", "\\to"},
    {"longrightarrow", "\\to"},
    {"varphi", "\\phi"},
    {"prime", "'"},
    {"land", "\\land"},
    {"wedge", "\\land"},
};
constexpr Synonym kPlainWords[] = {{"pi", "\\pi"},   {"sqrt", "\\sqrt"},  {"infinity", "\\infty"}, {"inf", "\\infty"},
                                   {"sin", "\\sin"}, {"cos", "\\cos"},    {"tan", "\\tan"},        {"log", "\\log"},
                                   {"ln", "\\ln"},   {"infty", "\\infty"}};
// A word that begins with one is no unit: "2 sinx".
constexpr absl::string_view kFunctions[] = {"arc", "cot", "sec", "csc", "exp", "lim",
                                            "max", "min", "gcd", "lcm", "mod"};
constexpr Synonym kCharacters[] = {
    {"−", "-"},          {"–", "-"},     {"·", "*"},       {"×", "*"},      {"⋅", "*"},       {"÷", "/"},
    {"≤", "\\le"},       {"≥", "\\ge"},  {"≠", "\\ne"},    {"π", "\\pi"},   {"∞", "\\infty"}, {"√", "\\sqrt"},
    {"∅", "\\emptyset"}, {"∪", "\\cup"}, {"∩", "\\cap"},   {"∈", "\\in"},   {"±", "\\pm"},    {"→", "\\to"},
    {"θ", "\\theta"},    {"′", "'"},     {"α", "\\alpha"}, {"β", "\\beta"}, {"…", "\\dots"},  {"|", "|"}};

class Tokenizer {
 public:
  Tokenizer(absl::string_view text, std::vector<MathToken>& tokens, int depth)
      : text_(text), tokens_(tokens), depth_(depth), dollars_(std::count(text.begin(), text.end(), '$')) {}

  // False if a limit was exceeded.
  bool Run() {
    while (at_ < text_.size() && ok_) {
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (absl::ascii_isspace(c) || c == '~') {
        spaced_ = true;
        ++at_;
      } else if (c == '$') {
        ++at_;
        // One alone does not enclose mathematics.
        if (dollars_ == 1 && DecimalBegins(text_, at_)) Add(Kind::kText, "$");
      } else if (c == '\\') {
        Command();
      } else if (DecimalBegins(text_, at_)) {
        const Commas commas = lists_ > 0 ? Commas::kSeparateItems : Commas::kSeparateThousands;
        Decimal decimal = ReadDecimal(text_, at_, commas);
        at_ = decimal.end;
        TakeExponent(decimal.digits);
        Add(Kind::kNumber, std::move(decimal.digits));
      } else if (absl::ascii_isalpha(c)) {
        Letters();
      } else if (c == '^' && SkipDegree()) {
        Add(Kind::kText, "°");
      } else {
        Character();
      }
    }
    return ok_;
  }

 private:
  void Add(Kind kind, std::string text) {
    if (tokens_.size() >= kMaxMathTokens) {
      ok_ = false;
      return;
    }
    tokens_.push_back({kind, std::move(text), std::exchange(spaced_, false)});
  }

  // Of 1.5e3, which at_ is in front of the "e" of. With a sign it may be a sum: 2e+3.
  void TakeExponent(std::string& digits) {
    constexpr size_t kMostDigits = 2;
    if (at_ >= text_.size() || (text_[at_] != 'e' && text_[at_] != 'E')) return;
    size_t end = at_ + 1;
    while (end < text_.size() && absl::ascii_isdigit(static_cast<unsigned char>(text_[end]))) ++end;
    if (end == at_ + 1 || end - at_ - 1 > kMostDigits) return;
    int exponent = 0;
    for (const char c : text_.substr(at_ + 1, end - at_ - 1)) exponent = 10 * exponent + (c - '0');
    at_ = end;
    digits = ShiftPoint(std::move(digits), exponent);
  }

  void AddNamed(absl::string_view name) {
    const bool command = name.size() > 1 && name[0] == '\\' && IsAlphaAt(name, 1);
    if (name == "{") {
      braces_.push_back(!tokens_.empty() && tokens_.back().Is("_"));
      lists_ += braces_.back() ? 1 : 0;
    } else if (name == "}" && !braces_.empty()) {
      lists_ -= braces_.back() && lists_ > 0 ? 1 : 0;
      braces_.pop_back();
    }
    if (name == "(" || name == "[" || name == "\\{") ++lists_;
    if (name == ")" || name == "]" || name == "\\}") lists_ = std::max(0, lists_ - 1);
    Add(command ? Kind::kCommand : Kind::kSymbol, std::string(name));
  }

  void AddComma(absl::string_view word) {
    AddNamed(",");
    if (ok_) tokens_.back().join = word == "and" ? MathToken::Join::kAnd : MathToken::Join::kOr;
  }

  bool LastIs(Kind kind) const { return !tokens_.empty() && tokens_.back().kind == kind; }
  // Whether a unit may follow: a number, or what ends in a bracket.
  bool IsBehindQuantity() const {
    if (tokens_.empty()) return false;
    const MathToken& last = tokens_.back();
    return last.kind == Kind::kNumber || last.kind == Kind::kText || last.Is("}") || last.Is(")") ||
           last.IsCommand("\\pi");
  }

  void SkipSpaces() {
    while (at_ < text_.size() && absl::ascii_isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }

  // Skips "^\circ" and "^{\circ}", which at_ is at, and returns whether it is.
  bool SkipDegree() {
    const size_t begin = at_++;
    SkipSpaces();
    absl::string_view rest = text_.substr(at_);
    const bool braced = absl::ConsumePrefix(&rest, "{");
    rest = absl::StripLeadingAsciiWhitespace(rest);
    const bool circle = absl::ConsumePrefix(&rest, "\\circ") || absl::ConsumePrefix(&rest, "\\degree");
    if (circle && braced) rest = absl::StripLeadingAsciiWhitespace(rest);
    if (!circle || (braced && !absl::ConsumePrefix(&rest, "}"))) {
      at_ = begin;
      return false;
    }
    at_ = text_.size() - rest.size();
    return true;
  }

  void Character() {
    const std::optional<Utf8Char> next = FirstUtf8Char(text_.substr(at_));
    const absl::string_view bytes = text_.substr(at_, next ? next->bytes : 1);
    at_ += bytes.size();
    for (const absl::string_view sign : {"°", "€", "£", "¥"}) {
      if (bytes == sign) return Add(Kind::kText, std::string(sign));
    }
    if (next && next->code == 0xA0) {
      spaced_ = true;
      return;
    }
    AddNamed(FindSynonym(kCharacters, bytes).value_or(bytes));
  }

  static bool BeginsWithFunction(absl::string_view word) {
    return std::any_of(std::begin(kFunctions), std::end(kFunctions),
                       [&](absl::string_view name) { return absl::StartsWith(word, name); }) ||
           std::any_of(std::begin(kPlainWords), std::end(kPlainWords),
                       [&](const Synonym& known) { return absl::StartsWith(word, known.first); });
  }

  // Letters that are variables rather than a word: abcd, wxyz, or without a vowel.
  static bool AreVariables(absl::string_view lower) {
    bool in_order = true;
    for (size_t i = 1; i < lower.size(); ++i) in_order &= lower[i] == lower[i - 1] + 1;
    return in_order || lower.find_first_of("aeiou") == absl::string_view::npos;
  }

  // A run of letters outside of \text{…}.
  void Letters() {
    const size_t begin = at_;
    while (IsAlphaAt(text_, at_)) ++at_;
    const absl::string_view run = text_.substr(begin, at_ - begin);
    const std::string lower = absl::AsciiStrToLower(run);
    const bool temperature = LastIs(Kind::kText) && tokens_.back().text == "°" && (run == "C" || run == "F");
    const bool long_word =
        run.size() >= 4 && spaced_ && LastIs(Kind::kNumber) && !BeginsWithFunction(lower) && !AreVariables(lower);
    const bool unit = run.size() >= 2 && IsBehindQuantity() && IsUnitWord(lower);
    if (temperature || long_word || unit) return Add(Kind::kText, std::string(run));
    if ((lower == "and" || lower == "or") && !tokens_.empty()) return AddComma(lower);
    if (const auto command = FindSynonym(kPlainWords, run)) return AddNamed(*command);
    for (const char c : run) Add(Kind::kLetter, std::string(1, c));
  }

  void Command() {
    size_t end = at_ + 1;
    while (IsAlphaAt(text_, end)) ++end;
    if (end == at_ + 1) end = std::min(end + 1, text_.size());
    const absl::string_view name = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end;
    if (IsOneOf(kSpaces, name)) {
      spaced_ = spaced_ || name != "!";
    } else if (IsOneOf(kLooks, name)) {
      // "\right." is no bracket.
      if ((name == "left" || name == "right") && at_ < text_.size() && text_[at_] == '.') ++at_;
    } else if (IsOneOf(kTexts, name)) {
      Text();
    } else if (name == "$") {
      Add(Kind::kText, "$");
    } else if (name == "circ" || name == "degree") {
      Add(Kind::kText, "°");
    } else if (name == "begin" || name == "end") {
      Environment(name);
    } else if (const auto known = FindSynonym(kCommands, name)) {
      AddNamed(*known);
      if (name == "\\") SkipRowGap();
    } else if (IsAlphaAt(name, 0)) {
      Add(Kind::kCommand, absl::StrCat("\\", name));
    } else if (!name.empty()) {
      Add(Kind::kSymbol, std::string(name));
    }
  }

  // The "[4pt]" behind the end of a row.
  void SkipRowGap() {
    constexpr size_t kMaxGapBytes = 10;
    if (at_ + 1 >= text_.size() || text_[at_] != '[' || !DecimalBegins(text_, at_ + 1)) return;
    const size_t close = text_.substr(at_, kMaxGapBytes).find(']');
    if (close != absl::string_view::npos && IsAlphaAt(text_, at_ + close - 1)) at_ += close + 1;
  }

  // Of "{…}", which at_ is at; leaves at_ behind it. Empty, without moving, if there is none.
  absl::string_view Braced() {
    if (at_ >= text_.size() || text_[at_] != '{') return "";
    int open = 0;
    for (size_t i = at_; i < text_.size(); ++i) {
      if (text_[i] == '\\') {
        ++i;
      } else if (text_[i] == '{') {
        ++open;
      } else if (text_[i] == '}' && --open == 0) {
        const absl::string_view inside = text_.substr(at_ + 1, i - at_ - 1);
        at_ = i + 1;
        return inside;
      }
    }
    return "";
  }

  void Environment(absl::string_view name) {
    const absl::string_view kind = absl::StripAsciiWhitespace(Braced());
    Add(Kind::kCommand, absl::StrCat("\\", name, "{", kind == "bmatrix" ? "pmatrix" : kind, "}"));
  }

  // What is in "\text{…}": words, or mathematics.
  void Text() {
    SkipSpaces();
    const std::string unbroken = absl::StrReplaceAll(Braced(), {{"~", " "}});
    absl::string_view inside = unbroken;
    if (inside != absl::StripLeadingAsciiWhitespace(inside)) spaced_ = true;
    inside = absl::StripAsciiWhitespace(inside);
    while (!inside.empty() && absl::StrContains(".,;:", inside.back())) inside.remove_suffix(1);
    if (DecimalBegins(inside, 0)) {
      Decimal decimal = ReadDecimal(inside, 0, Commas::kSeparateThousands);
      Add(Kind::kNumber, std::move(decimal.digits));
      inside = absl::StripAsciiWhitespace(inside.substr(decimal.end));
    }
    if (!inside.empty()) Words(inside);
  }

  void Words(absl::string_view inside) {
    const std::string lower = absl::AsciiStrToLower(inside);
    if (lower == "and" || lower == "or") return AddComma(lower);
    const bool unit = !tokens_.empty() && IsUnitWord(lower);
    bool only_words = true;
    for (size_t i = 0; i < inside.size(); ++i) {
      const bool power = i > 0 && inside[i - 1] == '^' && absl::ascii_isdigit(static_cast<unsigned char>(inside[i]));
      only_words &= power || IsAlphaAt(inside, i) || absl::StrContains(" .,'^/-", inside[i]);
    }
    if (unit || (only_words && inside.size() >= 2 && IsAlphaAt(inside, 0)))
      return Add(Kind::kText, std::string(inside));
    if (depth_ >= kMaxTextDepth) {
      ok_ = false;
      return;
    }
    if (!Tokenizer(inside, tokens_, depth_ + 1).Run()) ok_ = false;
  }

  const absl::string_view text_;
  std::vector<MathToken>& tokens_;
  const int depth_;
  const ptrdiff_t dollars_;  // how many signs of the dollar are in the text
  size_t at_ = 0;
  int lists_ = 0;             // how many (, [, \{ and subscripts are open: in them, commas separate items
  std::vector<bool> braces_;  // of each open {: whether it is that of a subscript
  bool spaced_ = false;
  bool ok_ = true;
};

}  // namespace

std::optional<std::vector<MathToken>> MathTokens(absl::string_view text) {
  std::vector<MathToken> tokens;
  if (!Tokenizer(text, tokens, 0).Run()) return std::nullopt;
  return tokens;
}

}  // namespace tdock::reward
