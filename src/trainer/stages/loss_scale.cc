#include "trainer/stages/loss_scale.h"

#include <algorithm>

#include "core/base/status.h"

namespace tdock::trainer {
namespace {

constexpr double kLargestScale = 16777216.0;

}  // namespace

void LossScale::Grow() {
  if (++finite_in_a_row_ < options_.growth_interval) return;
  finite_in_a_row_ = 0;
  value_ = std::max(value_, std::min(2 * value_, kLargestScale));
}

void LossScale::Save(State& state) const {
  state.SetNumber("value", value_);
  state.SetInteger("finite_in_a_row", finite_in_a_row_);
}

absl::Status LossScale::Load(const State& state) {
  TDOCK_ASSIGN_OR_RETURN(value_, state.Number("value"));
  TDOCK_ASSIGN_OR_RETURN(finite_in_a_row_, state.Integer("finite_in_a_row"));
  return absl::OkStatus();
}

bool LossScale::BackOff() {
  finite_in_a_row_ = 0;
  if (value_ <= options_.minimum) return false;
  value_ = std::max(value_ / 2, options_.minimum);
  return true;
}

}  // namespace tdock::trainer
