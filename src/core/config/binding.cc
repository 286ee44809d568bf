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

}  // namespace

void Binding::AddOtherValue(absl::string_view other, std::string value) {
  other_values_[absl::AsciiStrToLower(other)] = std::move(value);
}

void Binding::AddRefusedValue(absl::string_view other, std::string why) {
  refused_values_[absl::AsciiStrToLower(other)] = std::move(why);
}

std::string Binding::Hint(const Given& given) const {
  const auto refused = refused_values_.find(absl::AsciiStrToLower(given.text));
  return refused == refused_values_.end() ? "" : absl::StrCat("; ", refused->second);
}

bool Binding::Fill(const Value& value) {
  if (value.kind == Value::Kind::kList) return SetItems(value.items);
  if (value.kind != Value::Kind::kScalar) return false;
  const auto other = other_values_.find(absl::AsciiStrToLower(value.scalar.text));
  if (value.scalar.null || other == other_values_.end()) return Set(value.scalar);
  return Set({.text = other->second});
}

bool IntBinding::Set(const Given& given) {
  if (given.null || given.quoted) return false;
  const std::optional<int64_t> parsed = ParseInt(given.text);
  if (!parsed || *parsed < min_ || *parsed > max_) return false;
  *field_ = *parsed;
  return true;
}

Value IntBinding::Get() const { return {.scalar = {.text = absl::StrCat(*field_)}}; }

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

Value FloatBinding::Get() const { return {.scalar = {.text = ShowFloat(*field_)}}; }

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

bool StringBinding::SetItems(const std::vector<Given>& items) {
  const auto is_text = [](const Given& item) { return !item.null && !item.text.empty(); };
  if (!or_list_ || !std::all_of(items.begin(), items.end(), is_text)) return false;
  const auto append = [](std::string* out, const Given& item) { out->append(item.text); };
  return Set({.text = absl::StrJoin(items, ",", append)});
}

std::string StringBinding::Expected() const {
  return absl::StrCat(or_list_ ? "list, or text with commas" : "text", not_empty_ ? ", not empty" : "");
}

Value StringBinding::Get() const { return {.scalar = {.text = *field_, .quoted = true}}; }

bool StringsBinding::SetItems(const std::vector<Given>& items) {
  if (not_empty_ && items.empty()) return false;
  std::vector<std::string> texts;
  for (const Given& item : items) {
    if (item.null || (not_empty_ && item.text.empty())) return false;
    texts.push_back(item.text);
  }
  *field_ = std::move(texts);
  return true;
}

Value StringsBinding::Get() const {
  Value list{.kind = Value::Kind::kList};
  for (const std::string& text : *field_) list.items.push_back({.text = text, .quoted = true});
  return list;
}

std::string HintAtList(const Given& given) { return absl::StartsWith(given.text, "[") ? ", such as [a, b]" : ""; }

bool ChoiceBinding::Set(const Given& given) {
  const auto found = std::find(names_.begin(), names_.end(), given.text);
  if (given.null || found == names_.end()) return false;
  set_(static_cast<size_t>(found - names_.begin()));
  return true;
}

Value ChoiceBinding::Get() const {
  const size_t chosen = get_();
  TDOCK_CHECK(chosen < names_.size(), absl::StrCat("the field of ", key(), " holds none of its choices"));
  return {.scalar = {.text = names_[chosen], .quoted = true}};
}

std::string ChoiceBinding::Expected() const {
  if (names_.size() == 1) return names_[0];
  return absl::StrCat(absl::StrJoin(names_.begin(), names_.end() - 1, ", "), " or ", names_.back());
}

}  // namespace tdock::config
