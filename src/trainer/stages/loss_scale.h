// The factor of a loss that is computed in float16.
#pragma once

#include <cstdint>

#include "trainer/checkpoint/state.h"

namespace tdock::trainer {

struct LossScaleOptions {
  double initial = 65536.0;
  double minimum = 1.0;
  int64_t growth_interval = 2000;  // steps with finite gradients after which it doubles
};

// A loss is multiplied by it, and its gradients are divided by it afterwards: without that, small ones would be zero in
// float16, whose smallest number is 6e-8. It is as large as gradients allow: it is halved where they are not finite,
// and doubles after many steps in which they are (Micikevicius et al. 2018, arXiv:1710.03740; the defaults are those of
// PyTorch's GradScaler). At most 2²⁴, as in Apex. Powers of two change no digit. Not thread-safe.
class LossScale final : public Stateful {
 public:
  explicit LossScale(const LossScaleOptions& options) : options_(options), value_(options.initial) {}

  double value() const { return value_; }

  void Save(State& state) const override;
  absl::Status Load(const State& state) override;

  // After a step whose gradients were finite.
  void Grow();

  // After one whose gradients were not. false if they were not even with the minimum: the scale is not the reason.
  [[nodiscard]] bool BackOff();

 private:
  const LossScaleOptions options_;
  double value_;
  int64_t finite_in_a_row_ = 0;
};

}  // namespace tdock::trainer
