// Numbers in answers: read from text, and compared exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace tdock::reward {

// A fraction in lowest terms. `den` is positive, and neither number is below -INT64_MAX.
struct Rational {
  int64_t num = 0;
  int64_t den = 1;

  bool operator==(const Rational&) const = default;
};

// Nullopt for a denominator of 0, and for what does not fit.
std::optional<Rational> MakeRational(int64_t num, int64_t den);
std::optional<Rational> Multiply(Rational a, Rational b);
std::optional<Rational> Add(Rational a, Rational b);
// "3", "-3/4"
std::string Show(Rational number);

// The value of "12", "12.50" or ".5". Nullopt for what does not fit.
std::optional<Rational> DecimalValue(absl::string_view digits);
// The same text for each way of writing a decimal: without leading zeros, and without zeros at the end of its fraction.
std::string PlainDecimal(absl::string_view digits);
// A decimal times 10 to the power of `exponent`: "1.50" and 3 are "1500", "5" and -3 ".005".
std::string ShiftPoint(std::string digits, int exponent);

// A decimal at a place of a text.
struct Decimal {
  std::string digits;  // without separators: "1000.5"
  size_t end = 0;      // the offset behind it
};
enum class Commas { kSeparateThousands, kSeparateItems };
// Whether a decimal begins at `at`: a digit, or a point in front of one.
bool DecimalBegins(absl::string_view text, size_t at);
// Reads that decimal. Separators of thousands are "{,}", ",\!" and "\,", and a comma if `commas` says so; each is in
// front of exactly three digits.
Decimal ReadDecimal(absl::string_view text, size_t at, Commas commas);

// The number that a text gives as its answer, as a text that is the same for the same number: what is behind the last
// "####", as in GSM8K, else, unless `marked_only`, the last number. It may have a sign, a currency sign, separators of
// thousands, a decimal part; it may be a fraction 3/4, \frac{3}{4} or \frac{-3}{4}, or a mixed number 3 1/2. A percent
// sign is ignored. Linear in the text.
std::optional<std::string> FinalNumber(absl::string_view text, bool marked_only);
// True for a text that is such a number and nothing else: "-1,200.5", "$3", "3/4", "12 %", but no date and no list.
bool IsNumber(absl::string_view text);

}  // namespace tdock::reward
