#include "inference/grammar/char_dfa.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::inference {
namespace {

constexpr size_t kUsualWholeDigits = 19, kMaxFractionDigits = 15, kExactDigits = 15;
constexpr int kMaxExponent = 40;

// Bounds of a number without its sign. Those of one side of zero.
struct Magnitudes {
  Decimal low;
  bool excludes_low = false;
  std::optional<Decimal> high = {};
  bool excludes_high = false;
};

CharSet DigitSet(int low, int high) { return {{static_cast<char32_t>('0' + low), static_cast<char32_t>('0' + high)}}; }

// Adds numbers without a sign to an automaton.
class MagnitudeNfa {
 public:
  MagnitudeNfa(CharNfa& nfa, uint32_t end, bool is_integer, int64_t multiple_of)
      : nfa_(nfa), end_(end), is_integer_(is_integer), multiple_of_(multiple_of) {}

  void Add(uint32_t begin, const Magnitudes& of) {
    high_ = of.high.value_or(Decimal{.whole = std::string(std::max(kUsualWholeDigits, of.low.whole.size()), '9')});
    low_ = of.low;
    excludes_low_ = of.excludes_low;
    excludes_high_ = of.high && of.excludes_high;
    const int order = CompareDecimals(low_, high_);
    if (order > 0 || (order == 0 && (excludes_low_ || excludes_high_))) return;
    FindFractionDigits();
    free_wholes_.clear();
    free_fractions_.clear();
    for (const bool is_low : {false, true}) {
      for (const bool is_high : {false, true}) {
        ends_[is_low ? 1 : 0][is_high ? 1 : 0] = nfa_.NewNode();
        AddFraction(ends_[is_low ? 1 : 0][is_high ? 1 : 0], is_low, is_high);
      }
    }
    for (size_t digits = low_.whole.size(); digits <= high_.whole.size(); ++digits) AddWholes(begin, digits);
  }

 private:
  // A number with more digits could be rounded to a bound that is excluded.
  void FindFractionDigits() {
    fraction_digits_ = is_integer_ ? 0 : kMaxFractionDigits;
    const auto keep_exact = [&](const Decimal& bound) {
      fraction_digits_ = std::min(fraction_digits_, kExactDigits - std::min(kExactDigits, bound.whole.size()));
    };
    if (excludes_low_ && !low_.is_zero()) keep_exact(low_);
    if (excludes_high_) keep_exact(high_);
  }

  // Digits before the point, of numbers with so many of them. Those that are as far the same as a bound are apart.
  void AddWholes(uint32_t begin, size_t digits) {
    const bool at_low = digits == low_.whole.size(), at_high = digits == high_.whole.size();
    const std::string low = at_low ? low_.whole : "1" + std::string(digits - 1, '0');
    const std::string high = at_high ? high_.whole : std::string(digits, '9');
    using Place = std::tuple<bool, bool, int64_t>;  // the same as low, as high; the remainder
    std::map<Place, uint32_t> now = {{{true, true, 0}, begin}};
    for (size_t i = 0; i < digits; ++i) {
      std::map<Place, uint32_t> next;
      const auto to = [&](bool is_low, bool is_high, int64_t remainder) {
        if (i + 1 == digits && remainder != 0) return std::optional<uint32_t>();
        if (i + 1 == digits) return std::optional(ends_[is_low && at_low ? 1 : 0][is_high && at_high ? 1 : 0]);
        if (!is_low && !is_high) return std::optional(FreeWhole(digits - i - 1, remainder));
        const auto [found, is_new] = next.try_emplace({is_low, is_high, remainder}, 0);
        if (is_new) found->second = nfa_.NewNode();
        return std::optional(found->second);
      };
      for (const auto& [place, node] : now) {
        const auto& [is_low, is_high, remainder] = place;
        const int first = is_low ? low[i] - '0' : 0, last = is_high ? high[i] - '0' : 9;
        AddDigits(node, first, last, remainder, [&](int digit, int64_t rest) {
          return to(is_low && digit == first, is_high && digit == last, rest);
        });
      }
      now = std::move(next);
    }
  }

  // Edges for the digits from first to last, by to(digit, remainder).
  template <class To>
  void AddDigits(uint32_t node, int first, int last, int64_t remainder, const To& to) {
    for (int digit = first; digit <= last;) {
      // With remainders, each digit has its own; otherwise those between the first and the last are alike.
      const int until = multiple_of_ == 1 && digit > first && digit < last ? last - 1 : digit;
      const auto target = to(digit, (remainder * 10 + digit) % multiple_of_);
      if (target) nfa_.AddEdge(node, DigitSet(digit, until), *target);
      digit = until + 1;
    }
  }

  // So many digits more before the point, whatever they are.
  uint32_t FreeWhole(size_t digits, int64_t remainder) {
    const auto [found, is_new] = free_wholes_.try_emplace({digits, remainder}, 0);
    if (!is_new) return found->second;
    const uint32_t node = nfa_.NewNode();
    found->second = node;
    AddDigits(node, 0, 9, remainder, [&](int, int64_t rest) {
      if (digits > 1) return std::optional(FreeWhole(digits - 1, rest));
      return rest == 0 ? std::optional(ends_[0][0]) : std::optional<uint32_t>();
    });
    return node;
  }

  // Adds the rest of a number whose digits before the point are those of the bounds, or lie between them.
  void AddFraction(uint32_t begin, bool is_low, bool is_high) {
    if (MayEnd(0, is_low, is_high)) nfa_.AddFree(begin, end_);
    if (fraction_digits_ == 0) return;
    using Place = std::pair<bool, bool>;
    const uint32_t point = nfa_.NewNode();
    nfa_.AddEdge(begin, {{'.', '.'}}, point);
    std::map<Place, uint32_t> now = {{{is_low, is_high}, point}};
    for (size_t i = 0; i < fraction_digits_; ++i) {
      std::map<Place, uint32_t> next;
      for (const auto& [place, node] : now) {
        const auto [same_low, same_high] = place;
        const int first = same_low && i < low_.fraction.size() ? low_.fraction[i] - '0' : 0;
        const int last = !same_high ? 9 : i < high_.fraction.size() ? high_.fraction[i] - '0' : 0;
        for (int digit = first; digit <= last; ++digit) {
          const Place to(same_low && digit == first, same_high && digit == last);
          if (!to.first && !to.second) {
            // As all digits up to the last.
            const int until = same_high ? last - 1 : last;
            nfa_.AddEdge(node, DigitSet(digit, until), FreeFraction(fraction_digits_ - i - 1));
            digit = until;
            continue;
          }
          const auto [found, is_new] = next.try_emplace(to, 0);
          if (is_new) {
            found->second = nfa_.NewNode();
            if (MayEnd(i + 1, to.first, to.second)) nfa_.AddFree(found->second, end_);
          }
          nfa_.AddEdge(node, DigitSet(digit, digit), found->second);
        }
      }
      now = std::move(next);
    }
  }

  // A number may end behind so many digits of its fraction, where it is as far the same as these bounds.
  bool MayEnd(size_t digits, bool is_low, bool is_high) const {
    if (is_low && (digits < low_.fraction.size() || excludes_low_)) return false;
    return !is_high || digits < high_.fraction.size() || !excludes_high_;
  }

  // At most so many digits more behind the point.
  uint32_t FreeFraction(size_t digits) {
    const auto [found, is_new] = free_fractions_.try_emplace(digits, 0);
    if (!is_new) return found->second;
    const uint32_t node = nfa_.NewNode();
    found->second = node;
    nfa_.AddFree(node, end_);
    if (digits > 0) nfa_.AddEdge(node, DigitSet(0, 9), FreeFraction(digits - 1));
    return node;
  }

  CharNfa& nfa_;
  const uint32_t end_;
  const bool is_integer_;
  const int64_t multiple_of_;
  Decimal low_, high_;
  bool excludes_low_ = false, excludes_high_ = false;
  size_t fraction_digits_ = 0;
  uint32_t ends_[2][2] = {};  // behind the digits before the point: those of the lower bound, of the upper one
  std::map<std::pair<size_t, int64_t>, uint32_t> free_wholes_;
  std::map<size_t, uint32_t> free_fractions_;
};

}  // namespace

absl::StatusOr<Decimal> ReadDecimal(absl::string_view number) {
  Decimal decimal;
  absl::string_view rest = number;
  decimal.is_negative = absl::ConsumePrefix(&rest, "-");
  int exponent = 0;
  if (const size_t at = rest.find_first_of("eE"); at != absl::string_view::npos) {
    absl::string_view written = rest.substr(at + 1);
    absl::ConsumePrefix(&written, "+");
    if (!absl::SimpleAtoi(written, &exponent) || exponent > kMaxExponent || exponent < -kMaxExponent) {
      return absl::InvalidArgumentError(absl::StrCat("the number ", EscapeForMessage(number),
                                                     " has an exponent beyond ", kMaxExponent, " or -", kMaxExponent));
    }
    rest = rest.substr(0, at);
  }
  const size_t point = std::min(rest.find('.'), rest.size());
  std::string digits = absl::StrCat(rest.substr(0, point), rest.substr(std::min(point + 1, rest.size())));
  auto place = static_cast<int>(point) + exponent;  // of the point among the digits
  if (place < 0) {
    digits.insert(0, static_cast<size_t>(-place), '0');
    place = 0;
  }
  if (static_cast<size_t>(place) > digits.size()) digits.resize(static_cast<size_t>(place), '0');
  decimal.whole = digits.substr(0, static_cast<size_t>(place));
  decimal.fraction = digits.substr(static_cast<size_t>(place));
  decimal.whole.erase(0, std::min(decimal.whole.find_first_not_of('0'), decimal.whole.size()));
  if (decimal.whole.empty()) decimal.whole = "0";
  decimal.fraction.resize(decimal.fraction.find_last_not_of('0') + 1);
  if (decimal.is_zero()) decimal.is_negative = false;
  return decimal;
}

int CompareDecimals(const Decimal& a, const Decimal& b) {
  if (a.is_negative != b.is_negative) return a.is_negative ? -1 : 1;
  const int sign = a.is_negative ? -1 : 1;
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -sign : sign;
  if (const int order = a.whole.compare(b.whole); order != 0) return order < 0 ? -sign : sign;
  const int order = a.fraction.compare(b.fraction);  // without zeros at the end
  return order == 0 ? 0 : order < 0 ? -sign : sign;
}

absl::StatusOr<CharDfa> DfaOfNumbers(const NumberBounds& bounds) {
  const bool is_bounded = bounds.min || bounds.max || bounds.multiple_of != 1;
  if (!is_bounded) {
    constexpr char kInteger[] = "0|-?[1-9][0-9]{0,31}";
    constexpr char kNumber[] = R"(-?(0|[1-9][0-9]{0,31})(\.[0-9]{1,32})?([eE][+-]?[0-9]{1,2})?)";
    return CompileRegex(bounds.is_integer ? kInteger : kNumber, RegexMatch::kWhole);
  }
  CharNfa nfa;
  const uint32_t begin = nfa.NewNode(), minus = nfa.NewNode(), end = nfa.NewNode();
  nfa.AddEdge(begin, {{'-', '-'}}, minus);
  MagnitudeNfa magnitudes(nfa, end, bounds.is_integer, bounds.multiple_of);
  const auto& [min, max] = std::tie(bounds.min, bounds.max);
  const auto size_of = [](Decimal value) {
    value.is_negative = false;
    return value;
  };
  if (!max || !max->value.is_negative) {
    Magnitudes from_zero;
    if (min && !min->value.is_negative) {
      from_zero.low = min->value;
      from_zero.excludes_low = min->is_excluded;
    }
    if (max) {
      from_zero.high = max->value;
      from_zero.excludes_high = max->is_excluded;
    }
    magnitudes.Add(begin, from_zero);
  }
  if (!min || min->value.is_negative) {
    Magnitudes below_zero{.low = {}, .excludes_low = true};  // no -0
    if (max && max->value.is_negative) {
      below_zero.low = size_of(max->value);
      below_zero.excludes_low = max->is_excluded;
    }
    if (min) {
      below_zero.high = size_of(min->value);
      below_zero.excludes_high = min->is_excluded;
    }
    magnitudes.Add(minus, below_zero);
  }
  if (nfa.full()) return CharNfa::TooLarge();
  return nfa.Determinise(begin, end);
}

}  // namespace tdock::inference
