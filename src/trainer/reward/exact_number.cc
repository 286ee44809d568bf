#include "trainer/reward/exact_number.h"

#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tdock::reward {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

bool IsDigitAt(absl::string_view text, size_t at) {
  return at < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[at]));
}

size_t DigitsEnd(absl::string_view text, size_t at) {
  while (IsDigitAt(text, at)) ++at;
  return at;
}

// The bytes of the separator of thousands at `at`; 0 if there is none.
size_t SeparatorBytes(absl::string_view text, size_t at, Commas commas) {
  for (const absl::string_view separator : {"{,}", ",\\!", "\\,", ","}) {
    if (separator == "," && commas == Commas::kSeparateItems) continue;
    if (!absl::StartsWith(text.substr(at), separator)) continue;
    const size_t begin = at + separator.size();
    return DigitsEnd(text, begin) == begin + 3 ? separator.size() : 0;
  }
  return 0;
}

}  // namespace

std::optional<Rational> MakeRational(int64_t num, int64_t den) {
  if (den == 0 || num < -kLargest || den < -kLargest) return std::nullopt;
  if (den < 0) num = -num, den = -den;
  const int64_t common = std::gcd(num, den);
  return Rational{num / common, den / common};
}

std::optional<Rational> Multiply(Rational a, Rational b) {
  int64_t num = 0;
  int64_t den = 0;
  if (__builtin_mul_overflow(a.num, b.num, &num) || __builtin_mul_overflow(a.den, b.den, &den)) return std::nullopt;
  return MakeRational(num, den);
}

std::optional<Rational> Add(Rational a, Rational b) {
  int64_t left = 0;
  int64_t right = 0;
  int64_t num = 0;
  int64_t den = 0;
  if (__builtin_mul_overflow(a.num, b.den, &left) || __builtin_mul_overflow(b.num, a.den, &right) ||
      __builtin_add_overflow(left, right, &num) || __builtin_mul_overflow(a.den, b.den, &den)) {
    return std::nullopt;
  }
  return MakeRational(num, den);
}

std::string Show(Rational number) {
  return number.den == 1 ? absl::StrCat(number.num) : absl::StrCat(number.num, "/", number.den);
}

std::optional<Rational> DecimalValue(absl::string_view digits) {
  const std::string plain = PlainDecimal(digits);
  int64_t num = 0;
  int64_t den = 1;
  bool behind_point = false;
  for (const char c : plain) {
    if (c == '.') {
      behind_point = true;
      continue;
    }
    if (__builtin_mul_overflow(num, 10, &num) || __builtin_add_overflow(num, c - '0', &num)) return std::nullopt;
    if (behind_point && __builtin_mul_overflow(den, 10, &den)) return std::nullopt;
  }
  return MakeRational(num, den);
}

std::string PlainDecimal(absl::string_view digits) {
  if (absl::StrContains(digits, '.')) {
    while (absl::ConsumeSuffix(&digits, "0")) {
    }
    absl::ConsumeSuffix(&digits, ".");
  }
  while (absl::ConsumePrefix(&digits, "0")) {
  }
  return absl::StrCat(digits.empty() || digits[0] == '.' ? "0" : "", digits);
}

std::string ShiftPoint(std::string digits, int exponent) {
  const size_t point = digits.find('.');
  if (point != std::string::npos) digits.erase(point, 1);
  int64_t at = static_cast<int64_t>(point != std::string::npos ? point : digits.size()) + exponent;
  if (at < 0) {
    digits.insert(0, static_cast<size_t>(-at), '0');
    at = 0;
  }
  const auto shifted = static_cast<size_t>(at);
  if (shifted > digits.size()) digits.append(shifted - digits.size(), '0');
  if (shifted < digits.size()) digits.insert(shifted, 1, '.');
  return digits;
}

bool DecimalBegins(absl::string_view text, size_t at) {
  return IsDigitAt(text, at) || (at < text.size() && text[at] == '.' && IsDigitAt(text, at + 1));
}

Decimal ReadDecimal(absl::string_view text, size_t at, Commas commas) {
  size_t end = DigitsEnd(text, at);
  Decimal decimal;
  decimal.digits = std::string(text.substr(at, end - at));
  if (end > at && end - at <= 3 && text[at] != '0') {
    while (const size_t separator = SeparatorBytes(text, end, commas)) {
      absl::StrAppend(&decimal.digits, text.substr(end + separator, 3));
      end += separator + 3;
    }
  }
  if (end < text.size() && text[end] == '.' && IsDigitAt(text, end + 1)) {
    const size_t fraction = end;
    end = DigitsEnd(text, fraction + 1);
    absl::StrAppend(&decimal.digits, text.substr(fraction, end - fraction));
  }
  decimal.end = end;
  return decimal;
}

namespace {

// Whether a minus in front of `at`, perhaps with a currency sign between, is the sign of what begins there, rather than
// that of a difference or a range.
bool IsNegated(absl::string_view text, size_t at) {
  absl::string_view before = text.substr(0, at);
  for (const absl::string_view currency : {"\\$", "$", "€", "£", "¥"}) {
    if (absl::ConsumeSuffix(&before, currency)) break;
  }
  if (!absl::ConsumeSuffix(&before, "-") && !absl::ConsumeSuffix(&before, "−")) return false;
  if (before.empty()) return true;
  const auto last = static_cast<unsigned char>(before.back());
  return !absl::ascii_isalnum(last) && last != ')' && last != ']' && last != '}';
}

// The quotient of two decimals as FinalNumber() writes it; nullopt if it is none.
std::optional<std::string> Quotient(absl::string_view above, absl::string_view below) {
  const std::string plain_below = PlainDecimal(below);
  if (plain_below == "0") return std::nullopt;
  const std::optional<Rational> num = DecimalValue(above);
  const std::optional<Rational> den = DecimalValue(below);
  if (num && den) {
    if (const std::optional<Rational> value = Multiply(*num, {den->den, den->num})) return Show(*value);
  }
  return absl::StrCat(PlainDecimal(above), "/", plain_below);
}

std::string ShowDecimal(absl::string_view digits) {
  const std::optional<Rational> value = DecimalValue(digits);
  return value ? Show(*value) : PlainDecimal(digits);
}

struct FoundNumber {
  std::string shown;
  size_t end;
  bool negative = false;
};

size_t SpacesEnd(absl::string_view text, size_t at) {
  while (at < text.size() && text[at] == ' ') ++at;
  return at;
}

// Reads an argument of \frac, "{12}", "{-12}" or one digit, and leaves `at` behind it. A minus turns `negative` round.
std::optional<std::string> FractionPart(absl::string_view text, size_t& at, bool& negative) {
  at = SpacesEnd(text, at);
  if (IsDigitAt(text, at)) return std::string(text.substr(at++, 1));
  if (at >= text.size() || text[at] != '{') return std::nullopt;
  absl::string_view inside = text.substr(SpacesEnd(text, at + 1));
  const bool minus = absl::ConsumePrefix(&inside, "-") || absl::ConsumePrefix(&inside, "−");
  if (!minus) absl::ConsumePrefix(&inside, "+");
  const size_t begin = SpacesEnd(text, text.size() - inside.size());
  if (!DecimalBegins(text, begin)) return std::nullopt;
  Decimal part = ReadDecimal(text, begin, Commas::kSeparateThousands);
  const size_t close = SpacesEnd(text, part.end);
  if (close >= text.size() || text[close] != '}') return std::nullopt;
  at = close + 1;
  negative ^= minus;
  return std::move(part.digits);
}

struct Fraction {
  std::string above, below;
  size_t end;
  bool negative = false;
};

// \frac{3}{4} or \frac34
std::optional<Fraction> FractionCommand(absl::string_view text, size_t at) {
  absl::string_view rest = text.substr(at);
  if (!absl::ConsumePrefix(&rest, "\\frac") && !absl::ConsumePrefix(&rest, "\\dfrac") &&
      !absl::ConsumePrefix(&rest, "\\tfrac")) {
    return std::nullopt;
  }
  size_t end = text.size() - rest.size();
  bool negative = false;
  std::optional<std::string> above = FractionPart(text, end, negative);
  if (!above) return std::nullopt;
  std::optional<std::string> below = FractionPart(text, end, negative);
  if (!below) return std::nullopt;
  return Fraction{*std::move(above), *std::move(below), end, negative};
}

// 3/4 of whole numbers, but not the parts of 1/2/2026
std::optional<Fraction> PlainFraction(absl::string_view text, size_t at) {
  const size_t slash = DigitsEnd(text, at);
  if (slash == at || slash >= text.size() || text[slash] != '/') return std::nullopt;
  const size_t end = DigitsEnd(text, slash + 1);
  const bool goes_on = end < text.size() && (text[end] == '/' || text[end] == '.') && IsDigitAt(text, end + 1);
  if (end == slash + 1 || goes_on) return std::nullopt;
  return Fraction{std::string(text.substr(at, slash - at)), std::string(text.substr(slash + 1, end - slash - 1)), end};
}

// The mixed number 3 1/2 or 3\frac{1}{2} whose whole part is before `at`.
std::optional<FoundNumber> MixedNumber(absl::string_view text, size_t at, absl::string_view whole) {
  if (absl::StrContains(whole, '.')) return std::nullopt;
  size_t begin = at;
  while (begin < text.size() && text[begin] == ' ') ++begin;
  std::optional<Fraction> part = FractionCommand(text, begin);
  if (!part && begin > at) part = PlainFraction(text, begin);
  if (!part || part->negative) return std::nullopt;
  const std::optional<std::string> shown = Quotient(part->above, part->below);
  if (!shown) return std::nullopt;
  const std::optional<Rational> above = DecimalValue(part->above);
  const std::optional<Rational> below = DecimalValue(part->below);
  const std::optional<Rational> quotient = above && below ? Multiply(*above, {below->den, below->num}) : std::nullopt;
  if (quotient && (quotient->num == 0 || quotient->num >= quotient->den)) return std::nullopt;
  const std::optional<Rational> integer = DecimalValue(whole);
  if (const auto sum = quotient && integer ? Add(*integer, *quotient) : std::nullopt) {
    return FoundNumber{Show(*sum), part->end};
  }
  return FoundNumber{absl::StrCat(PlainDecimal(whole), " ", *shown), part->end};
}

// 42, 3/4 or 3 1/2, but not the parts of 1/2/2026
FoundNumber DecimalOrFraction(absl::string_view text, size_t at) {
  const Decimal first = ReadDecimal(text, at, Commas::kSeparateThousands);
  FoundNumber alone{ShowDecimal(first.digits), first.end};
  const bool may_divide = first.end + 1 < text.size() && text[first.end] == '/' && IsDigitAt(text, first.end + 1) &&
                          (at == 0 || text[at - 1] != '/');
  if (!may_divide) {
    const bool part_of_date = at > 0 && text[at - 1] == '/';
    return part_of_date ? alone : MixedNumber(text, first.end, first.digits).value_or(alone);
  }
  const Decimal second = ReadDecimal(text, first.end + 1, Commas::kSeparateThousands);
  if (second.end < text.size() && text[second.end] == '/' && IsDigitAt(text, second.end + 1)) return alone;
  const auto shown = Quotient(first.digits, second.digits);
  return shown ? FoundNumber{*shown, second.end} : alone;
}

enum class Which { kFirst, kLast };

std::optional<std::string> FindNumber(absl::string_view text, Which which) {
  std::optional<std::string> found;
  for (size_t at = 0; at < text.size();) {
    std::optional<FoundNumber> number;
    if (text[at] == '\\') {
      if (const std::optional<Fraction> fraction = FractionCommand(text, at)) {
        if (auto shown = Quotient(fraction->above, fraction->below))
          number = FoundNumber{*std::move(shown), fraction->end, fraction->negative};
      }
    }
    if (!number && DecimalBegins(text, at)) number = DecimalOrFraction(text, at);
    if (!number) {
      ++at;
      continue;
    }
    const bool negative = number->shown != "0" && IsNegated(text, at) != number->negative;
    found = absl::StrCat(negative ? "-" : "", number->shown);
    if (which == Which::kFirst) break;
    at = number->end;
  }
  return found;
}

}  // namespace

std::optional<std::string> FinalNumber(absl::string_view text, bool marked_only) {
  constexpr absl::string_view kMarker = "####";
  const size_t marker = text.rfind(kMarker);
  if (marker != absl::string_view::npos) return FindNumber(text.substr(marker + kMarker.size()), Which::kFirst);
  if (marked_only) return std::nullopt;
  return FindNumber(text, Which::kLast);
}

bool IsNumber(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  for (const absl::string_view sign : {"-", "−", "+", "\\$", "$", "€", "£", "¥"}) absl::ConsumePrefix(&text, sign);
  absl::ConsumeSuffix(&text, "%");
  absl::ConsumeSuffix(&text, "\\");
  text = absl::StripAsciiWhitespace(text);
  if (const std::optional<Fraction> fraction = FractionCommand(text, 0)) return fraction->end == text.size();
  return DecimalBegins(text, 0) && DecimalOrFraction(text, 0).end == text.size();
}

}  // namespace tdock::reward
