// Products in mathematical answers. Internal to this module.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trainer/reward/exact_number.h"

namespace tdock::reward {

// A rational coefficient times factors, over factors: 3/2·\pi·\sqrt(2)/x. At most one number of the numerator and one
// of the denominator go into the coefficient; others remain factors, so 2·3 is not 6.
class Product {
 public:
  // The empty product.
  Product() = default;
  // A decimal. One that does not fit a Rational is a factor.
  static Product Number(absl::string_view digits);
  static Product Factor(std::string factor);

  bool IsEmpty() const { return empty_; }
  // Whether it is a coefficient alone.
  bool IsNumber() const { return !empty_ && above_.empty() && below_.empty(); }

  void Negate();
  void Multiply(Product other);
  void Divide(Product other);
  // Adds 1/2 to 1, as 1\frac{1}{2} means, and returns true, if this is a number and the other one between 0 and 1.
  bool AddProperFraction(const Product& fraction);

  std::string Text() const;
  // The same, in brackets if it is more than one factor.
  std::string AsFactor() const;

 private:
  bool IsFactor() const;

  Rational coefficient_;
  bool number_above_ = false;  // the coefficient has a number other than 1 from the numerator
  bool number_below_ = false;
  std::vector<std::string> above_, below_;
  bool empty_ = true;
};

}  // namespace tdock::reward
