#include "trainer/environment/arithmetic.h"

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/reward/exact_number.h"

namespace tdock::environment {
namespace {

using reward::Rational;

constexpr size_t kMostBytes = 1000;
constexpr int kDeepest = 50;

absl::StatusOr<Rational> Fits(std::optional<Rational> value) {
  if (value) return *value;
  return absl::InvalidArgumentError("the numbers are too large");
}

// A parser by recursive descent, one function for each level of precedence.
class Expression {
 public:
  explicit Expression(absl::string_view text) : text_(text) {}

  absl::StatusOr<Rational> Value() {
    TDOCK_ASSIGN_OR_RETURN(const Rational value, Sum());
    if (Peek() != '\0' || at_ < text_.size()) return Unexpected();
    return value;
  }

 private:
  absl::StatusOr<Rational> Sum() {
    TDOCK_ASSIGN_OR_RETURN(Rational value, Product());
    for (char sign = Peek(); sign == '+' || sign == '-'; sign = Peek()) {
      ++at_;
      TDOCK_ASSIGN_OR_RETURN(const Rational right, Product());
      TDOCK_ASSIGN_OR_RETURN(value, Fits(reward::Add(value, sign == '+' ? right : Rational{-right.num, right.den})));
    }
    return value;
  }

  absl::StatusOr<Rational> Product() {
    TDOCK_ASSIGN_OR_RETURN(Rational value, Factor());
    for (char sign = Peek(); sign == '*' || sign == '/'; sign = Peek()) {
      ++at_;
      TDOCK_ASSIGN_OR_RETURN(Rational right, Factor());
      if (sign == '/') {
        if (right.num == 0) return absl::InvalidArgumentError("division by zero");
        TDOCK_ASSIGN_OR_RETURN(right, Fits(reward::MakeRational(right.den, right.num)));
      }
      TDOCK_ASSIGN_OR_RETURN(value, Fits(reward::Multiply(value, right)));
    }
    return value;
  }

  absl::StatusOr<Rational> Factor() {
    const char next = Peek();
    if (next != '(' && next != '-' && next != '+') return Number();
    if (++depth_ > kDeepest) {
      return absl::InvalidArgumentError(absl::StrCat("the expression has more than ", kDeepest, " levels"));
    }
    ++at_;
    Rational value;
    if (next == '(') {
      TDOCK_ASSIGN_OR_RETURN(value, Sum());
      if (Peek() != ')') return Unexpected();
      ++at_;
    } else {
      TDOCK_ASSIGN_OR_RETURN(value, Factor());
      if (next == '-') value.num = -value.num;
    }
    --depth_;
    return value;
  }

  absl::StatusOr<Rational> Number() {
    Peek();
    if (!reward::DecimalBegins(text_, at_)) return Unexpected();
    const reward::Decimal decimal = reward::ReadDecimal(text_, at_, reward::Commas::kSeparateThousands);
    at_ = decimal.end;
    return Fits(reward::DecimalValue(decimal.digits));
  }

  // The next character that is no white space, which becomes the current place; 0 at the end.
  char Peek() {
    while (at_ < text_.size() && absl::ascii_isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  absl::Status Unexpected() const {
    if (at_ >= text_.size()) return absl::InvalidArgumentError("the expression is not complete");
    const std::optional<Utf8Char> next = FirstUtf8Char(text_.substr(at_));
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected ", Quoted(text_.substr(at_, next ? next->bytes : 1)), " at position ", at_ + 1));
  }

  const absl::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
};

// As a decimal, if that has an end and its digits can be computed in 64 bits, else as a fraction.
std::string Shown(Rational value) {
  int64_t other = value.den;  // without the factors of powers of ten
  for (const int64_t factor : {2, 5}) {
    while (other % factor == 0) other /= factor;
  }
  if (other != 1) return reward::Show(value);
  const int64_t size = value.num < 0 ? -value.num : value.num;
  std::string text = absl::StrCat(value.num < 0 ? "-" : "", size / value.den);
  int64_t rest = size % value.den;
  if (rest != 0) text += '.';
  while (rest != 0) {
    if (__builtin_mul_overflow(rest, 10, &rest)) return reward::Show(value);
    absl::StrAppend(&text, rest / value.den);
    rest %= value.den;
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> Evaluate(absl::string_view expression) {
  if (expression.size() > kMostBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the expression has more than ", kMostBytes, " bytes"));
  }
  TDOCK_ASSIGN_OR_RETURN(const Rational value, Expression(expression).Value());
  return Shown(value);
}

}  // namespace tdock::environment
