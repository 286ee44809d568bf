#include "trainer/reward/math_answer.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "trainer/reward/math_form.h"
#include "trainer/reward/math_tokens.h"
#include "trainer/reward/math_units.h"

namespace tdock::reward {
namespace {

using Kind = MathToken::Kind;
using Tokens = std::span<const MathToken>;

// One value of an answer; most answers have one.
struct Item {
  std::string name;  // "x" of "x = 5"
  std::string value;
  std::string unit;
  bool word = false;  // letters only
};

struct MathAnswer {
  std::vector<Item> items;
  bool set = false;  // written as one
  // How statements are connected, for "x > 1 and x < 5" is not "x > 1 or x < 5". Empty for values: 1 and 2 are 1 or 2.
  std::string joined;
};

bool Opens(const MathToken& token) { return token.Is("(") || token.Is("[") || token.Is("{") || token.Is("\\{"); }
bool Closes(const MathToken& token) { return token.Is(")") || token.Is("]") || token.Is("}") || token.Is("\\}"); }

// The index of the bracket that closes the one at 0, or the size.
size_t CloseOfFirst(Tokens tokens) {
  int open = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (Opens(tokens[i])) ++open;
    if (Closes(tokens[i]) && --open == 0) return i;
  }
  return tokens.size();
}

std::vector<Tokens> SplitAtCommas(Tokens tokens) {
  std::vector<Tokens> parts;
  size_t begin = 0;
  int open = 0;
  for (size_t i = 0; i <= tokens.size(); ++i) {
    if (i == tokens.size() || (open == 0 && tokens[i].Is(","))) {
      if (i > begin) parts.push_back(tokens.subspan(begin, i - begin));
      begin = i + 1;
    } else if (Opens(tokens[i])) {
      ++open;
    } else if (Closes(tokens[i])) {
      open = std::max(0, open - 1);
    }
  }
  return parts;
}

// Whether tokens in front of "=" name what follows: x, x_1, \theta, f(x), (x, y), AB, \text{Area}, \angle A. Not xy, 2x
// or \ln x, for these make an equation.
bool IsName(Tokens tokens) {
  if (tokens.empty() || tokens.size() > 12) return false;
  bool value_before = false;
  int open = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const MathToken& token = tokens[i];
    const bool letter = token.kind == Kind::kLetter;
    const bool lower = letter && absl::ascii_islower(static_cast<unsigned char>(token.text[0]));
    const bool symbol = token.kind == Kind::kCommand && IsValueCommand(token.text);
    if ((lower || symbol) && value_before) return false;
    if (!token.Is("_") && !token.Is("'")) value_before = letter || symbol;
    const bool goes_on = token.Is(")") || token.Is(",") || token.Is("'");
    if (i > 0 && tokens[i - 1].Is(")") && !goes_on) return false;  // f(x)g(x)
    open += token.Is("(") ? 1 : token.Is(")") ? -1 : 0;
    if (token.Is("_") && i + 1 < tokens.size()) {
      const bool braced = tokens[i + 1].Is("{");
      i += braced ? CloseOfFirst(tokens.subspan(i + 1)) + 1 : 1;
      continue;
    }
    const bool figure = token.IsCommand("\\angle") || token.IsCommand("\\triangle");
    if (!letter && !symbol && !figure && !goes_on && token.kind != Kind::kText && !token.Is("(")) return false;
  }
  return open == 0;
}

std::string Concatenated(Tokens tokens) {
  std::string text;
  for (const MathToken& token : tokens) text += token.text;
  return text;
}

// Takes "x =" or "x \in" from the front, if that is a name and there is no other "=".
std::string TakeName(Tokens& tokens) {
  const auto relates = [](const MathToken& token) { return token.Is("=") || token.IsCommand("\\in"); };
  const auto relation = std::find_if(tokens.begin(), tokens.end(), relates);
  if (relation == tokens.end() || std::find_if(relation + 1, tokens.end(), relates) != tokens.end()) return "";
  const size_t at = static_cast<size_t>(relation - tokens.begin());
  if (at + 1 == tokens.size() || !IsName(tokens.first(at))) return "";
  std::string name = Concatenated(tokens.first(at));
  tokens = tokens.subspan(at + 1);
  return name;
}

// Whether tokens are words, percent signs, and powers of these.
bool IsUnit(Tokens tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].kind == Kind::kText || tokens[i].Is("%") || tokens[i].Is("/")) continue;
    if (i == 0 || !tokens[i].Is("^")) return false;
    const Tokens power = tokens.subspan(i + 1);
    if (!power.empty() && power[0].kind == Kind::kNumber) {
      i += 1;
    } else if (power.size() >= 3 && power[0].Is("{") && power[1].kind == Kind::kNumber && power[2].Is("}")) {
      i += 3;
    } else {
      return false;
    }
  }
  return !tokens.empty();
}

// Letters, as a word or a choice: "(A)", "A", "a)", "\text{Yes}", "yes". Empty if it is anything else.
std::string Word(Tokens tokens) {
  if (tokens.size() == 3 && tokens[0].Is("(") && tokens[2].Is(")")) tokens = tokens.subspan(1, 1);
  if (tokens.size() == 2 && tokens[1].Is(")")) tokens = tokens.first(1);
  const auto is_letter = [](const MathToken& t) { return t.kind == Kind::kLetter || t.kind == Kind::kText; };
  if (tokens.empty() || !std::all_of(tokens.begin(), tokens.end(), is_letter)) return "";
  std::string word = Concatenated(tokens);
  word.erase(std::remove(word.begin(), word.end(), ' '), word.end());
  const auto is_lower = [](unsigned char c) { return absl::ascii_islower(c); };
  const bool choice = word.size() == 1 && absl::StrContains("abcdefgh", absl::ascii_tolower(word[0]));
  if (choice || (word.size() >= 3 && std::all_of(word.begin() + 1, word.end(), is_lower))) {
    absl::AsciiStrToLower(&word);
  }
  return word;
}

// Whether words change a value instead of naming its unit: "or more", "million", "thirds".
bool ChangesValue(absl::string_view words) {
  constexpr absl::string_view kChanging[] = {
      "or",       "and",     "nor",      "not",      "no",       "but",      "except",    "without",
      "if",       "unless",  "when",     "where",    "than",     "more",     "less",      "most",
      "least",    "half",    "halves",   "third",    "thirds",   "quarter",  "quarters",  "squared",
      "cubed",    "dozen",   "dozens",   "hundred",  "hundreds", "thousand", "thousands", "million",
      "millions", "billion", "billions", "trillion", "trillions"};
  const std::string lower = absl::AsciiStrToLower(words);
  for (const absl::string_view word : absl::StrSplit(lower, absl::ByAnyChar(" .,;:'^/-()"), absl::SkipEmpty())) {
    if (std::find(std::begin(kChanging), std::end(kChanging), word) != std::end(kChanging)) return true;
  }
  return false;
}

// Takes a sign of a currency from the front, perhaps behind that of the value.
std::string TakeCurrency(std::vector<MathToken>& tokens) {
  const size_t at = !tokens.empty() && (tokens[0].Is("-") || tokens[0].Is("+")) ? 1 : 0;
  if (at + 1 >= tokens.size() || tokens[at].kind != Kind::kText) return "";
  constexpr absl::string_view kSigns[] = {"$", "€", "£", "¥"};
  if (std::find(std::begin(kSigns), std::end(kSigns), tokens[at].text) == std::end(kSigns)) return "";
  std::string sign = std::move(tokens[at].text);
  tokens.erase(tokens.begin() + static_cast<ptrdiff_t>(at));
  return sign;
}

// Takes a unit from the end, behind anything else but a word. `currency` is the sign in front of the value, if any.
std::string TakeUnit(Tokens& tokens, const std::string& currency) {
  size_t first = tokens.size();
  for (size_t i = 1; i < tokens.size() && first == tokens.size(); ++i) {
    const bool begins = tokens[i].kind == Kind::kText || tokens[i].Is("%");
    const bool goes_on = tokens[i - 1].kind == Kind::kText;
    if (begins && !goes_on && IsUnit(tokens.subspan(i))) first = i;
  }
  const std::string money = UnitName(currency);
  if (first == tokens.size() || !Word(tokens.first(first)).empty()) return money;
  std::string unit;
  for (const MathToken& token : tokens.subspan(first)) {
    absl::StrAppend(&unit, token.kind == Kind::kText || token.Is("%") ? " " : "", token.text);
  }
  if (ChangesValue(unit)) return money;
  tokens = tokens.first(first);
  return absl::StartsWith(UnitName(unit), money) ? UnitName(unit) : UnitName(absl::StrCat(currency, " ", unit));
}

// Without signs of degrees and percent inside, where they say nothing that the function around them does not.
std::vector<MathToken> WithoutInnerSigns(Tokens tokens) {
  std::vector<MathToken> kept;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool sign = tokens[i].text == "°" || tokens[i].Is("%");
    const bool behind_number = i > 0 && (tokens[i - 1].kind == Kind::kNumber || tokens[i - 1].Is("}"));
    const bool before_number = i + 1 < tokens.size() && tokens[i + 1].kind == Kind::kNumber;
    if (!sign || !behind_number || before_number) kept.push_back(tokens[i]);
  }
  return kept;
}

// False if there is too much nesting.
bool AddItem(Tokens tokens, std::vector<Item>& items) {
  Item item;
  item.name = TakeName(tokens);
  std::vector<MathToken> rest(tokens.begin(), tokens.end());
  const std::string currency = TakeCurrency(rest);
  tokens = rest;
  item.unit = TakeUnit(tokens, currency);
  item.value = Word(tokens);
  item.word = !item.value.empty();
  if (!item.word) {
    const auto form = MathForm(WithoutInnerSigns(tokens));
    if (!form) return false;
    item.value = *form;
  }
  if (item.name.empty() && !items.empty()) item.name = items.back().name;  // x = 1, 2
  items.push_back(std::move(item));
  return true;
}

// The same with + and with - for the only \pm.
bool AddItems(Tokens tokens, std::vector<Item>& items) {
  const auto is_sign = [](const MathToken& token) { return token.IsCommand("\\pm"); };
  if (std::count_if(tokens.begin(), tokens.end(), is_sign) != 1) return AddItem(tokens, items);
  std::vector<MathToken> signed_tokens(tokens.begin(), tokens.end());
  MathToken& sign = *std::find_if(signed_tokens.begin(), signed_tokens.end(), is_sign);
  for (const char* symbol : {"+", "-"}) {
    sign = {Kind::kSymbol, symbol};
    if (!AddItem(signed_tokens, items)) return false;
  }
  return true;
}

bool HasDifferentNames(const MathAnswer& answer) {
  const auto differs = [&](const Item& item) { return item.name != answer.items[0].name; };
  return std::any_of(answer.items.begin(), answer.items.end(), differs);
}

constexpr absl::string_view kMixed = "mixed";

// MathAnswer::joined of an answer whose items are between the commas of `tokens`.
std::string Joined(const MathAnswer& answer, Tokens tokens) {
  bool has_and = false;
  bool has_or = false;
  bool membership = false;
  for (const MathToken& token : tokens) {
    has_and |= token.join == MathToken::Join::kAnd;
    has_or |= token.join == MathToken::Join::kOr;
    membership |= token.IsCommand("\\in");
  }
  const auto is_statement = [](const Item& item) {
    constexpr absl::string_view kRelations[] = {" = ",    " < ",    " > ",    " \\le ",
                                                " \\ge ", " \\ne ", " \\in ", " \\notin "};
    return std::any_of(std::begin(kRelations), std::end(kRelations),
                       [&](absl::string_view relation) { return absl::StrContains(item.value, relation); });
  };
  const bool statements = membership || std::any_of(answer.items.begin(), answer.items.end(), is_statement);
  if (answer.items.size() < 2 || (!statements && !HasDifferentNames(answer))) return "";
  if (has_and && has_or) return std::string(kMixed);
  if (has_or) return "or";
  return has_and && statements ? "and" : "";
}

std::optional<MathAnswer> ReadAnswer(absl::string_view text) {
  const auto all = MathTokens(text);
  if (!all) return std::nullopt;
  Tokens tokens = *all;
  while (!tokens.empty() && (tokens.back().Is(".") || tokens.back().Is(","))) tokens = tokens.first(tokens.size() - 1);
  MathAnswer answer;
  while (tokens.size() >= 2 && (tokens[0].Is("{") || tokens[0].Is("\\{")) &&
         CloseOfFirst(tokens) + 1 == tokens.size()) {
    const bool escaped = tokens[0].Is("\\{");
    tokens = tokens.subspan(1, tokens.size() - 2);
    answer.set = escaped || SplitAtCommas(tokens).size() > 1;
    if (answer.set) break;
  }
  if (tokens.size() == 1 && tokens[0].IsCommand("\\emptyset")) {
    answer.set = true;
    return answer;
  }
  for (const Tokens part : SplitAtCommas(tokens)) {
    if (!AddItems(part, answer.items)) return std::nullopt;
  }
  answer.joined = Joined(answer, tokens);
  return answer;
}

// An answer as values that can be compared one by one.
std::vector<std::string> Values(const MathAnswer& answer, bool names, bool units, bool ordered) {
  std::vector<std::string> values;
  values.reserve(answer.items.size());
  for (const Item& item : answer.items) {
    values.push_back(absl::StrCat(names ? item.name : "", "=", item.value, "|", units ? item.unit : ""));
  }
  if (!ordered) std::sort(values.begin(), values.end());
  if (answer.set) values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

bool SameAnswer(const MathAnswer& a, const MathAnswer& b) {
  if (a.items.empty() || b.items.empty()) return a.set && b.set && a.items.empty() && b.items.empty();
  const auto all = [&](const auto& has) {
    return std::all_of(a.items.begin(), a.items.end(), has) && std::all_of(b.items.begin(), b.items.end(), has);
  };
  const bool names = all([](const Item& item) { return !item.name.empty(); });
  const bool units = all([](const Item& item) { return !item.unit.empty(); });
  const auto has_word = [](const MathAnswer& answer) {
    return std::any_of(answer.items.begin(), answer.items.end(), [](const Item& item) { return item.word; });
  };
  // Without the names of the other, x = 1, y = 2 is a tuple.
  const bool tuple = !names && (HasDifferentNames(a) || HasDifferentNames(b));
  if (a.joined != b.joined || a.joined == kMixed || (tuple && (a.set || b.set))) return false;
  const bool ordered = tuple || (!a.set && !b.set && (has_word(a) || has_word(b)));
  return Values(a, names, units, ordered) == Values(b, names, units, ordered);
}

}  // namespace

std::optional<std::string> LastBoxed(absl::string_view text) {
  size_t begin = absl::string_view::npos;  // of what is in the last box
  size_t end = absl::string_view::npos;
  int64_t open = 0;
  int64_t around_box = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{') {
      ++open;
    } else if (text[i] == '}') {
      if (open > 0) --open;
      if (end == absl::string_view::npos && begin != absl::string_view::npos && open == around_box) end = i;
    } else if (text[i] == '\\') {
      absl::string_view rest = text.substr(i + 1);
      if (absl::ConsumePrefix(&rest, "boxed") || absl::ConsumePrefix(&rest, "fbox")) {
        rest = absl::StripLeadingAsciiWhitespace(rest);
        if (!absl::ConsumePrefix(&rest, "{")) continue;
        i = text.size() - rest.size() - 1;
        begin = i + 1;
        end = absl::string_view::npos;
        around_box = open++;
      } else {
        ++i;  // an escaped brace, or the letter of another command
      }
    }
  }
  if (begin == absl::string_view::npos || end == absl::string_view::npos) return std::nullopt;
  return std::string(absl::StripAsciiWhitespace(text.substr(begin, end - begin)));
}

std::optional<std::string> LastAnswerLine(absl::string_view text) {
  constexpr absl::string_view kAnswer = "answer";
  for (size_t at = text.size(); at-- > 0;) {
    if (!absl::EqualsIgnoreCase(text.substr(at, kAnswer.size()), kAnswer)) continue;
    absl::string_view rest = text.substr(at + kAnswer.size());
    const auto skip = [&rest] {
      while (!rest.empty() && (rest[0] == '*' || rest[0] == ' ' || rest[0] == '\t')) rest.remove_prefix(1);
    };
    skip();
    if (!absl::ConsumePrefix(&rest, ":")) continue;
    rest = rest.substr(0, rest.find('\n'));
    skip();
    rest = absl::StripAsciiWhitespace(rest);
    while (absl::ConsumeSuffix(&rest, "*")) {
    }
    if (rest.empty()) return std::nullopt;
    return std::string(absl::StripAsciiWhitespace(rest));
  }
  return std::nullopt;
}

bool SameMathAnswer(absl::string_view a, absl::string_view b) {
  a = absl::StripAsciiWhitespace(a);
  b = absl::StripAsciiWhitespace(b);
  if (a == b) return true;
  if (a.size() > kMaxMathBytes || b.size() > kMaxMathBytes) return false;
  const auto read_a = ReadAnswer(a);
  const auto read_b = ReadAnswer(b);
  return read_a && read_b && SameAnswer(*read_a, *read_b);
}

}  // namespace tdock::reward
