#include "text/jinja/format_spec.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/jinja/arithmetic.h"
#include "text/jinja/characters.h"
#include "text/jinja/compare.h"
#include "text/jinja/repr.h"
#include "text/jinja/text_operations.h"

namespace tdock::jinja {
namespace {

constexpr int64_t kMostPrecision = 1000;
constexpr int64_t kWidest = int64_t{1} << 40;

bool IsAlignment(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

absl::StatusOr<int64_t> Digits(absl::string_view& spec) {
  int64_t number = 0;
  while (!spec.empty() && absl::ascii_isdigit(static_cast<unsigned char>(spec[0]))) {
    number = number * 10 + (spec[0] - '0');
    if (number > kWidest) return absl::InvalidArgumentError("a number in a format is too large");
    spec.remove_prefix(1);
  }
  return number;
}

// Digits with a separator before each group, with zeros in front up to `width` characters.
std::string Grouped(absl::string_view digits, char grouping, int64_t group, int64_t width) {
  std::string reversed;
  int64_t count = 0;
  for (size_t i = digits.size(); i > 0 || static_cast<int64_t>(reversed.size()) < width;) {
    if (grouping != 0 && count > 0 && count % group == 0) reversed.push_back(grouping);
    reversed.push_back(i > 0 ? digits[--i] : '0');
    ++count;
  }
  std::reverse(reversed.begin(), reversed.end());
  return reversed;
}

// Sign, prefix, digits and what follows them, as wide as the specification wants.
absl::StatusOr<std::string> Laid(Machine& machine, bool is_negative, absl::string_view prefix, absl::string_view digits,
                                 absl::string_view rest, int64_t group, const FormatSpec& spec) {
  if (!machine.meter().MayHold(static_cast<size_t>(spec.width) * spec.fill.size()) ||
      !machine.meter().SpendBytes(static_cast<size_t>(spec.width))) {
    return machine.meter().status();
  }
  const std::string sign = is_negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  const bool zeros = spec.align == '=' && spec.fill == "0";
  const auto around = static_cast<int64_t>(sign.size() + prefix.size() + rest.size());
  const std::string grouped = Grouped(digits, spec.grouping, group, zeros ? spec.width - around : 0);
  const int64_t padding = std::max<int64_t>(0, spec.width - around - static_cast<int64_t>(grouped.size()));
  std::string fill;
  for (int64_t i = 0; i < padding; ++i) fill += spec.fill;
  const size_t left = static_cast<size_t>(padding / 2) * spec.fill.size();
  switch (spec.align) {
    case '<':
      return absl::StrCat(sign, prefix, grouped, rest, fill);
    case '^':
      return absl::StrCat(fill.substr(0, left), sign, prefix, grouped, rest, fill.substr(left));
    case '=':
      return absl::StrCat(sign, prefix, fill, grouped, rest);
    default:
      return absl::StrCat(fill, sign, prefix, grouped, rest);
  }
}

std::string DigitsOf(absl::uint128 value, unsigned base, bool is_upper) {
  std::string digits;
  do {
    const auto digit = static_cast<unsigned>(value % base);
    digits.push_back(static_cast<char>(digit < 10 ? '0' + digit : (is_upper ? 'A' : 'a') + digit - 10));
    value /= base;
  } while (value != 0);
  std::reverse(digits.begin(), digits.end());
  return digits;
}

// A float with a precision and no type: 'g', but with a digit behind the point.
std::string FloatWithoutType(double value, int64_t precision) {
  precision = std::max<int64_t>(precision, 1);
  const std::string exponential = absl::StrFormat("%.*e", static_cast<int>(precision - 1), value);
  const size_t e = exponential.find('e');
  const int exponent = std::atoi(exponential.c_str() + e + 1);
  const auto trimmed = [](std::string number) {
    if (number.find('.') == std::string::npos) return number;
    number.erase(number.find_last_not_of('0') + 1);
    if (number.back() == '.') number.pop_back();
    return number;
  };
  if (exponent < -4 || exponent >= precision - 1) {
    if (exponent + 1 > precision - 1 || exponent < -4) return trimmed(exponential.substr(0, e)) + exponential.substr(e);
  }
  std::string fixed =
      trimmed(absl::StrFormat("%.*f", static_cast<int>(std::max<int64_t>(0, precision - 1 - exponent)), value));
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

std::string Magnitude(double value, const FormatSpec& spec) {
  const bool is_upper = spec.type == 'E' || spec.type == 'F' || spec.type == 'G';
  if (std::isnan(value)) return is_upper ? "NAN" : "nan";
  if (std::isinf(value)) return is_upper ? "INF" : "inf";
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  const bool alternate = spec.alternate;
  switch (spec.type) {
    case 'e':
      return alternate ? absl::StrFormat("%#.*e", precision, value) : absl::StrFormat("%.*e", precision, value);
    case 'E':
      return alternate ? absl::StrFormat("%#.*E", precision, value) : absl::StrFormat("%.*E", precision, value);
    case 'f':
    case 'F':
    case '%':
      return alternate ? absl::StrFormat("%#.*f", precision, value) : absl::StrFormat("%.*f", precision, value);
    case 'g':
    case 'n':
      return alternate ? absl::StrFormat("%#.*g", precision, value) : absl::StrFormat("%.*g", precision, value);
    case 'G':
      return alternate ? absl::StrFormat("%#.*G", precision, value) : absl::StrFormat("%.*G", precision, value);
    default:
      return spec.precision < 0 ? FloatRepr(value) : FloatWithoutType(value, spec.precision);
  }
}

absl::Status UnknownType(char type, absl::string_view of) {
  return absl::InvalidArgumentError(
      absl::StrCat("the format ", Quoted(std::string(1, type)), " is unknown for a value of the type ", of));
}

}  // namespace

absl::StatusOr<FormatSpec> ParseFormatSpec(absl::string_view spec) {
  FormatSpec parsed;
  if (!spec.empty()) {
    const size_t first = CharacterAt(spec, 0).bytes;
    if (spec.size() > first && IsAlignment(spec[first])) {
      parsed.fill = std::string(spec.substr(0, first));
      parsed.align = spec[first];
      spec.remove_prefix(first + 1);
    } else if (IsAlignment(spec[0])) {
      parsed.align = spec[0];
      spec.remove_prefix(1);
    }
  }
  const auto take = [&](absl::string_view any) -> char {
    if (spec.empty() || any.find(spec[0]) == absl::string_view::npos) return 0;
    const char c = spec[0];
    spec.remove_prefix(1);
    return c;
  };
  if (const char sign = take("+- ")) parsed.sign = sign;
  parsed.alternate = take("#") != 0;
  if (take("0") != 0) {
    parsed.zero = true;
    if (parsed.align == 0) parsed.fill = "0";
  }
  TDOCK_ASSIGN_OR_RETURN(parsed.width, Digits(spec));
  parsed.grouping = take(",_");
  if (take(".") != 0) {
    if (spec.empty() || !absl::ascii_isdigit(static_cast<unsigned char>(spec[0])))
      return absl::InvalidArgumentError("a format lacks the precision behind its point");
    TDOCK_ASSIGN_OR_RETURN(parsed.precision, Digits(spec));
  }
  if (spec.size() > 1) return absl::InvalidArgumentError(absl::StrCat("the format ", Quoted(spec), " is unknown"));
  if (!spec.empty()) parsed.type = spec[0];
  return parsed;
}

absl::StatusOr<std::string> FormatInteger(Machine& machine, const Value& value, const FormatSpec& given) {
  FormatSpec spec = given;
  if (spec.zero && spec.align == 0) spec.align = '=';
  const absl::int128 number = ToInt128(value);
  const absl::uint128 magnitude = static_cast<absl::uint128>(number < 0 ? -number : number);
  const bool is_negative = number < 0;
  if (spec.type == 'e' || spec.type == 'E' || spec.type == 'f' || spec.type == 'F' || spec.type == 'g' ||
      spec.type == 'G' || spec.type == '%') {
    return FormatFloat(machine, ToDouble(value), given);
  }
  if (spec.precision >= 0) return absl::InvalidArgumentError("an integer is formatted without a precision");
  switch (spec.type) {
    case 0:
    case 'd':
    case 'n':
      return Laid(machine, is_negative, "", DigitsOf(magnitude, 10, false), "", 3, spec);
    case 'b':
      return Laid(machine, is_negative, spec.alternate ? "0b" : "", DigitsOf(magnitude, 2, false), "", 4, spec);
    case 'o':
      return Laid(machine, is_negative, spec.alternate ? "0o" : "", DigitsOf(magnitude, 8, false), "", 4, spec);
    case 'x':
      return Laid(machine, is_negative, spec.alternate ? "0x" : "", DigitsOf(magnitude, 16, false), "", 4, spec);
    case 'X':
      return Laid(machine, is_negative, spec.alternate ? "0X" : "", DigitsOf(magnitude, 16, true), "", 4, spec);
    case 'c': {
      if (number < 0 || number > 0x10FFFF || (number >= 0xD800 && number < 0xE000))
        return absl::InvalidArgumentError("the format 'c' needs the number of a character");
      std::string character;
      AppendCharacter(static_cast<char32_t>(static_cast<uint32_t>(number)), character);
      if (spec.align == 0) spec.align = '<';
      return FormatText(machine, Text(character), spec).TakeBytes();
    }
    default:
      return UnknownType(spec.type, "int");
  }
}

absl::StatusOr<std::string> FormatFloat(Machine& machine, double value, const FormatSpec& given) {
  FormatSpec spec = given;
  if (spec.zero && spec.align == 0) spec.align = '=';
  constexpr absl::string_view kTypes = "eEfFgGn%";
  if (spec.type != 0 && kTypes.find(spec.type) == absl::string_view::npos) return UnknownType(spec.type, "float");
  if (spec.precision > kMostPrecision)
    return absl::InvalidArgumentError(absl::StrCat("a precision may be at most ", kMostPrecision));
  const std::string text = Magnitude(std::abs(spec.type == '%' ? value * 100 : value), spec);
  const size_t whole = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string rest = text.substr(whole) + (spec.type == '%' ? "%" : "");
  return Laid(machine, std::signbit(value) && !std::isnan(value), "", text.substr(0, whole), rest, 3, spec);
}

Text FormatText(Machine& machine, const Text& text, const FormatSpec& spec) {
  Text shown = text;
  if (spec.precision >= 0) shown = text.Substr(0, OffsetOf(text.bytes(), spec.precision));
  const int64_t padding = std::max<int64_t>(0, spec.width - CountCharacters(shown.bytes()));
  const int64_t left = spec.align == '>' ? padding : spec.align == '^' ? padding / 2 : 0;
  TextBuilder out(machine.meter());
  out.AppendTimes(spec.fill, left);
  out.Append(shown);
  out.AppendTimes(spec.fill, padding - left);
  return out.Take();
}

absl::StatusOr<Text> FormatValue(Machine& machine, const Value& value, absl::string_view spec) {
  if (spec.empty()) return Str(machine, value);
  TDOCK_ASSIGN_OR_RETURN(const FormatSpec parsed, ParseFormatSpec(spec));
  if (value.is_text()) {
    if (parsed.align == '=' || parsed.sign != '-' || parsed.alternate || parsed.grouping != 0 ||
        (parsed.type != 0 && parsed.type != 's')) {
      return absl::InvalidArgumentError(absl::StrCat("the format ", Quoted(spec), " is none of a string"));
    }
    return FormatText(machine, value.AsText(), parsed);
  }
  if (!value.is_number()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a value of the type ", TypeName(value), " cannot be formatted as ", Quoted(spec)));
  }
  TDOCK_ASSIGN_OR_RETURN(std::string text, value.is_integer() ? FormatInteger(machine, value, parsed)
                                                              : FormatFloat(machine, value.AsFloat(), parsed));
  return Text(std::move(text));
}

}  // namespace tdock::jinja
