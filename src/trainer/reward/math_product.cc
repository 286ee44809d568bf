#include "trainer/reward/math_product.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tdock::reward {
namespace {

// Factors that people write in any order: roots, \pi and i. The order of letters may mean something.
bool IsConstant(const std::string& factor) {
  return absl::StartsWith(factor, "\\sqrt") || factor == "\\pi" || factor == "i";
}

std::string JoinFactors(std::vector<std::string> factors) {
  if (std::all_of(factors.begin(), factors.end(), IsConstant)) std::sort(factors.begin(), factors.end());
  return absl::StrJoin(factors, "*");
}

void Append(std::vector<std::string>& to, std::vector<std::string> from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

Product Product::Number(absl::string_view digits) {
  Product number;
  number.empty_ = false;
  number.coefficient_ = {1, 1};
  if (const auto value = DecimalValue(digits)) {
    number.coefficient_ = *value;
    number.number_above_ = *value != Rational{1, 1};
  } else {
    number.above_.push_back(PlainDecimal(digits));
  }
  return number;
}

Product Product::Factor(std::string factor) {
  Product product;
  product.empty_ = false;
  product.coefficient_ = {1, 1};
  product.above_.push_back(std::move(factor));
  return product;
}

void Product::Negate() {
  if (empty_) coefficient_ = {1, 1};
  coefficient_.num = -coefficient_.num;
  empty_ = false;
}

void Product::Multiply(Product other) {
  if (other.empty_) return;
  if (empty_) {
    *this = std::move(other);
    return;
  }
  const bool takes_number = !(number_above_ && other.number_above_) && !(number_below_ && other.number_below_);
  const auto product = takes_number ? tdock::reward::Multiply(coefficient_, other.coefficient_) : std::nullopt;
  if (!product && other.coefficient_ != Rational{1, 1}) {
    above_.push_back(other.AsFactor());
    return;
  }
  if (product) coefficient_ = *product;
  number_above_ |= other.number_above_;
  number_below_ |= other.number_below_;
  Append(above_, std::move(other.above_));
  Append(below_, std::move(other.below_));
}

void Product::Divide(Product other) {
  if (empty_) *this = Factor("");
  if (other.empty_ || other.coefficient_.num == 0) {
    above_.push_back(absl::StrCat("/", other.empty_ ? "" : other.AsFactor()));
    return;
  }
  const auto reciprocal = MakeRational(other.coefficient_.den, other.coefficient_.num);
  // Both have a number: x/2/3.
  const bool takes_number =
      reciprocal && !(number_below_ && other.number_above_) && !(number_above_ && other.number_below_);
  const auto quotient = takes_number ? tdock::reward::Multiply(coefficient_, *reciprocal) : std::nullopt;
  if (!quotient) {
    below_.push_back(other.AsFactor());
    return;
  }
  coefficient_ = *quotient;
  number_below_ |= other.number_above_;
  number_above_ |= other.number_below_;
  Append(below_, std::move(other.above_));
  Append(above_, std::move(other.below_));
}

bool Product::AddProperFraction(const Product& fraction) {
  const Rational part = fraction.coefficient_;
  if (!IsNumber() || !fraction.IsNumber() || part.num <= 0 || part.num >= part.den) return false;
  const auto sum = Add(coefficient_, part);
  if (!sum) return false;
  coefficient_ = *sum;
  number_above_ = number_below_ = true;
  return true;
}

bool Product::IsFactor() const {
  if (IsNumber()) return coefficient_.den == 1 && coefficient_.num >= 0;
  return coefficient_ == Rational{1, 1} && above_.size() == 1 && below_.empty();
}

std::string Product::Text() const {
  if (empty_) return "";
  std::string text = JoinFactors(above_);
  if (text.empty()) {
    text = Show(coefficient_);
  } else if (coefficient_ != Rational{1, 1}) {
    text = absl::StrCat(Show(coefficient_), "*", text);
  }
  if (!below_.empty()) absl::StrAppend(&text, "/(", JoinFactors(below_), ")");
  return text;
}

std::string Product::AsFactor() const { return IsFactor() ? Text() : absl::StrCat("(", Text(), ")"); }

}  // namespace tdock::reward
