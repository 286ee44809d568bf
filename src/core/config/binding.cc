#include "core/config/binding.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"

namespace tdock::config {
namespace {

bool AllDigits(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

// The digits after an optional sign. A leading zero is refused: YAML 1.1 reads 010 as eight and YAML 1.2 as ten.
std::optional<int64_t> ParseInt(absl::string_view text) {
  absl::string_view number = text;
  if (absl::StartsWith(number, "+")) number.remove_prefix(1);
  absl::string_view digits = number;
  if (digits.size() == text.size() && absl::StartsWith(digits, "-")) digits.remove_prefix(1);
  if (!AllDigits(digits) || (digits.size() > 1 && digits[0] == '0')) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || end != number.data() + number.size()) return std::nullopt;
  return value;
}

// A finite number.
std::optional<double> ParseFloat(absl::string_view text) {
  const bool negative = absl::StartsWith(text, "-");
  if (negative || absl::StartsWith(text, "+")) text.remove_prefix(1);
  // from_chars also reads "inf" and "nan".
  if (text.empty() || !(absl::ascii_isdigit(text[0]) || text[0] == '.')) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return negative ? -value : value;
}

// The shortest text that reads back as `value`, with a point: without one, YAML 1.1 takes 1e-04 for a word.
std::string ShowFloat(double value) {
  const double magnitude = std::abs(value);
  const bool fixed = magnitude == 0 || (magnitude >= 1e-5 && magnitude < 1e15);
  char buffer[64];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value,
                                          fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end);
  if (!absl::StrContains(text, '.')) text.insert(std::min(text.find('e'), text.size()), ".0");
  return text;
}

// Words that YAML 1.1 or 1.2 reads as something other than text.
bool IsReservedWord(absl::string_view text) {
  const std::string lower = absl::AsciiStrToLower(text);
  for (absl::string_view word : {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}) {
    if (lower == word) return true;
  }
  return false;
}

std::string ShowString(absl::string_view text) {
  const auto is_plain = [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '/' || c == '.' || c == ':';
  };
  const bool plain = !text.empty() && (absl::ascii_isalpha(text[0]) || text[0] == '_' || text[0] == '/') &&
                     std::all_of(text.begin(), text.end(), is_plain) && text.back() != ':' && !IsReservedWord(text);
  if (plain) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&quoted, "\\", absl::string_view(&c, 1));
    } else if (absl::ascii_iscntrl(c)) {
      absl::StrAppendFormat(&quoted, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      quoted.push_back(c);
    }
  }
  return quoted + "\"";
}

}  // namespace

bool IntBinding::Set(const Given& given) {
  if (given.null || given.quoted) return false;
  const std::optional<int64_t> parsed = ParseInt(given.text);
  if (!parsed || *parsed < min_ || *parsed > max_) return false;
  *field_ = *parsed;
  return true;
}

std::string IntBinding::Yaml() const { return absl::StrCat(*field_); }

std::string IntBinding::Expected() const {
  std::vector<std::string> bounds;
  if (min_ > std::numeric_limits<int64_t>::min()) bounds.push_back(absl::StrCat("≥ ", min_));
  if (max_ < std::numeric_limits<int64_t>::max()) bounds.push_back(absl::StrCat("≤ ", max_));
  return absl::StrCat("integer", bounds.empty() ? "" : " ", absl::StrJoin(bounds, " and "));
}

std::string IntBinding::Hint(const Given& given) const {
  absl::string_view digits = given.text;
  if (absl::StartsWith(digits, "-") || absl::StartsWith(digits, "+")) digits.remove_prefix(1);
  if (given.quoted || !AllDigits(digits)) return "";
  if (digits.size() > 1 && digits[0] == '0') return " without leading zeros";
  return ParseInt(given.text) ? "" : " in 64 bits";
}

bool FloatBinding::Set(const Given& given) {
  if (given.null || given.quoted) return false;
  const std::optional<double> parsed = ParseFloat(given.text);
  if (!parsed) return false;
  if (*parsed < min_ || (above_min_ && *parsed <= min_)) return false;
  if (*parsed > max_ || (below_max_ && *parsed >= max_)) return false;
  *field_ = *parsed;
  return true;
}

std::string FloatBinding::Yaml() const { return ShowFloat(*field_); }

std::string FloatBinding::Expected() const {
  std::vector<std::string> bounds;
  if (!std::isinf(min_)) bounds.push_back(absl::StrCat(above_min_ ? "> " : "≥ ", min_));
  if (!std::isinf(max_)) bounds.push_back(absl::StrCat(below_max_ ? "< " : "≤ ", max_));
  return absl::StrCat("number", bounds.empty() ? "" : " ", absl::StrJoin(bounds, " and "));
}

bool BoolBinding::Set(const Given& given) {
  if (given.null || given.quoted) return false;
  const bool is_true = given.text == "true" || given.text == "True" || given.text == "TRUE";
  if (!is_true && given.text != "false" && given.text != "False" && given.text != "FALSE") return false;
  *field_ = is_true;
  return true;
}

bool StringBinding::Set(const Given& given) {
  if (given.null || (not_empty_ && given.text.empty())) return false;
  *field_ = given.text;
  return true;
}

std::string StringBinding::Yaml() const { return ShowString(*field_); }

bool ChoiceBinding::Set(const Given& given) {
  const auto found = std::find(names_.begin(), names_.end(), given.text);
  if (given.null || found == names_.end()) return false;
  set_(static_cast<size_t>(found - names_.begin()));
  return true;
}

std::string ChoiceBinding::Yaml() const {
  const size_t chosen = get_();
  TDOCK_CHECK(chosen < names_.size(), absl::StrCat("the field of ", key(), " holds none of its choices"));
  return ShowString(names_[chosen]);
}

std::string ChoiceBinding::Expected() const {
  if (names_.size() == 1) return names_[0];
  return absl::StrCat(absl::StrJoin(names_.begin(), names_.end() - 1, ", "), " or ", names_.back());
}

}  // namespace tdock::config
