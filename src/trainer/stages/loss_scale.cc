#include "trainer/stages/loss_scale.h"

#include <algorithm>

namespace tdock::trainer {
namespace {

constexpr double kLargestScale = 16777216.0;

}  // namespace

void LossScale::Grow() {
  if (++finite_in_a_row_ < options_.growth_interval) return;
  finite_in_a_row_ = 0;
  value_ = std::max(value_, std::min(2 * value_, kLargestScale));
}

bool LossScale::BackOff() {
  finite_in_a_row_ = 0;
  if (value_ <= options_.minimum) return false;
  value_ = std::max(value_ / 2, options_.minimum);
  return true;
}

}  // namespace tdock::trainer
