#include "trainer/reward/math_units.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace tdock::reward {
namespace {

// A word, without the ending of a plural, and the unit's symbol.
constexpr std::pair<absl::string_view, absl::string_view> kUnits[] = {
    {"m", "m"},           {"meter", "m"},       {"metre", "m"},       {"cm", "cm"},
    {"centimeter", "cm"}, {"centimetre", "cm"}, {"mm", "mm"},         {"millimeter", "mm"},
    {"millimetre", "mm"}, {"km", "km"},         {"kilometer", "km"},  {"kilometre", "km"},
    {"in", "in"},         {"inch", "in"},       {"inche", "in"},      {"ft", "ft"},
    {"foot", "ft"},       {"feet", "ft"},       {"yd", "yd"},         {"yard", "yd"},
    {"mi", "mi"},         {"mile", "mi"},       {"g", "g"},           {"gm", "g"},
    {"gram", "g"},        {"kg", "kg"},         {"kilogram", "kg"},   {"mg", "mg"},
    {"milligram", "mg"},  {"lb", "lb"},         {"pound", "lb"},      {"oz", "oz"},
    {"ounce", "oz"},      {"s", "s"},           {"sec", "s"},         {"second", "s"},
    {"min", "min"},       {"minute", "min"},    {"h", "h"},           {"hr", "h"},
    {"hour", "h"},        {"day", "day"},       {"week", "week"},     {"month", "month"},
    {"yr", "year"},       {"year", "year"},     {"deg", "degree"},    {"degree", "degree"},
    {"°", "degree"},      {"percent", "%"},     {"%", "%"},           {"l", "l"},
    {"liter", "l"},       {"litre", "l"},       {"ml", "ml"},         {"milliliter", "ml"},
    {"gallon", "gallon"}, {"rad", "radian"},    {"radian", "radian"}, {"dollar", "dollar"},
    {"$", "dollar"},      {"cent", "cent"},     {"euro", "euro"},     {"€", "euro"},
    {"yen", "yen"},       {"¥", "yen"},         {"mph", "mi/h"},      {"kph", "km/h"},
    {"unit", "unit"},     {"point", "point"},   {"way", "way"},       {"student", "student"},
    {"square", "^2"},     {"sq", "^2"},         {"cubic", "^3"},      {"cu", "^3"},
    {"per", "/"},
};

// "boxes" loses its last letter only, which does not matter: both sides lose it.
absl::string_view Singular(absl::string_view word) {
  const bool plural = word.size() > 2 && word.back() == 's' && !absl::EndsWith(word, "ss");
  return plural ? word.substr(0, word.size() - 1) : word;
}

absl::string_view Symbol(absl::string_view word) {
  for (const absl::string_view form : {word, Singular(word)}) {
    for (const auto& [name, symbol] : kUnits) {
      if (name == form) return symbol;
    }
  }
  return "";
}

}  // namespace

bool IsUnitWord(absl::string_view word) { return !Symbol(word).empty(); }

std::string UnitName(absl::string_view unit) {
  const std::string spread =
      absl::StrReplaceAll(absl::AsciiStrToLower(unit),
                          {{"/", " per "}, {".", " "}, {",", " "}, {"-", " "}, {"^", " ^"}, {"{", ""}, {"}", ""}});
  std::vector<std::string> parts;
  absl::string_view power;  // of the word that follows
  for (const absl::string_view word : absl::StrSplit(spread, ' ', absl::SkipEmpty())) {
    if (word == "of") continue;
    const absl::string_view symbol = Symbol(word);
    if (symbol == "unit") return "";
    if (symbol == "^2" || symbol == "^3") {
      power = symbol;
    } else if (word[0] == '^' && !parts.empty()) {
      absl::StrAppend(&parts.back(), word);
    } else {
      parts.push_back(absl::StrCat(symbol.empty() ? Singular(word) : symbol, power));
      power = "";
    }
  }
  // "mi / h" as "mi/h".
  return absl::StrReplaceAll(absl::StrJoin(parts, " "), {{" / ", "/"}});
}

}  // namespace tdock::reward
