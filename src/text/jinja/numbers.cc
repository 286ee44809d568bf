#include "text/jinja/numbers.h"

#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "text/jinja/arithmetic.h"
#include "text/jinja/characters.h"
#include "text/jinja/compare.h"
#include "text/jinja/text_operations.h"

namespace tdock::jinja {
namespace {

// Without single underscores between digits; nullopt for other underscores.
std::optional<std::string> WithoutUnderscores(absl::string_view digits) {
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (digits[i] != '_') {
      text.push_back(digits[i]);
      continue;
    }
    const auto is_digit = [&](size_t at) {
      return at < digits.size() && absl::ascii_isalnum(static_cast<unsigned char>(digits[at]));
    };
    if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) return std::nullopt;
  }
  return text;
}

std::string Stripped(const Text& text) { return Strip(text, std::nullopt, {true, true}).TakeBytes(); }

int DigitOf(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (absl::ascii_isdigit(byte)) return c - '0';
  return absl::ascii_isalpha(byte) ? absl::ascii_tolower(byte) - 'a' + 10 : 99;
}

absl::StatusOr<std::optional<Value>> ParseIntText(const Text& text, int64_t base) {
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  const std::string stripped = Stripped(text);
  absl::string_view digits = stripped;
  const bool is_negative = absl::ConsumePrefix(&digits, "-");
  if (!is_negative) absl::ConsumePrefix(&digits, "+");
  const auto prefix = [&](absl::string_view lower, int64_t of_base) {
    if ((base != 0 && base != of_base) || !absl::StartsWithIgnoreCase(digits, lower)) return false;
    digits.remove_prefix(2);
    absl::ConsumePrefix(&digits, "_");
    base = of_base;
    return true;
  };
  if (!prefix("0x", 16) && !prefix("0o", 8) && !prefix("0b", 2) && base == 0) {
    base = 10;
    if (digits.size() > 1 && digits[0] == '0' && digits.find_first_not_of("0_") != absl::string_view::npos)
      return std::nullopt;
  }
  const auto plain = WithoutUnderscores(digits);
  if (!plain || plain->empty()) return std::nullopt;
  absl::int128 value = 0;
  for (const char c : *plain) {
    const int digit = DigitOf(c);
    if (digit >= base) return std::nullopt;
    if (value < absl::int128(1) << 100) value = value * base + digit;
  }
  return FromInt128(is_negative ? -value : value);
}

}  // namespace

absl::StatusOr<Value> TruncatedFloat(double value) {
  if (std::abs(value) >= 0x1p64) return absl::InvalidArgumentError("an integer has more than 64 bits");
  return FromInt128(absl::int128(value));
}

absl::StatusOr<std::optional<Value>> ParseInt(const Value& value, int64_t base) {
  if (value.is_text()) return ParseIntText(value.AsText(), base);
  if (value.is_integer()) return Negate(value, false);
  if (value.kind() != Value::Kind::kFloat || !std::isfinite(value.AsFloat())) return std::nullopt;
  return TruncatedFloat(value.AsFloat());
}

std::optional<double> ParseFloat(const Value& value) {
  if (value.is_number()) return ToDouble(value);
  if (!value.is_text()) return std::nullopt;
  const auto plain = WithoutUnderscores(Stripped(value.AsText()));
  if (!plain || plain->empty() || plain->find_first_of("xXpP") != std::string::npos) return std::nullopt;
  double real = 0;
  if (plain->find_first_of(" \t\n()") != std::string::npos || !absl::SimpleAtod(*plain, &real)) return std::nullopt;
  return real;
}

double RoundedFloat(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 400) return value;
  if (digits < -400) return std::copysign(0.0, value);
  if (digits >= 0) {
    double rounded = 0;
    // The shortest way to round the exact value to even.
    return absl::SimpleAtod(absl::StrFormat("%.*f", static_cast<int>(digits), value), &rounded) ? rounded : value;
  }
  const long double power = std::pow(10.0L, static_cast<long double>(-digits));
  return static_cast<double>(std::nearbyint(static_cast<long double>(value) / power) * power);
}

}  // namespace tdock::jinja
