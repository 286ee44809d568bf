#include "trainer/stages/weight_average.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::trainer {

WeightAverage::WeightAverage(model::Decoder& decoder, double decay) : weights_(decoder.trainable()), decay_(decay) {
  for (const at::Tensor& weight : weights_) {
    const at::ScalarType type = at::promoteTypes(weight.scalar_type(), at::kFloat);
    average_.push_back(weight.detach().to(type, /*non_blocking=*/false, /*copy=*/true));
  }
}

void WeightAverage::Update() {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < weights_.size(); ++i) {
    average_[i].lerp_(weights_[i].detach().to(average_[i].scalar_type()), 1.0 - decay_);
  }
}

void WeightAverage::Save(State& state) const {
  for (size_t i = 0; i < average_.size(); ++i) state.SetTensor(absl::StrCat(i), average_[i]);
}

absl::Status WeightAverage::Load(const State& state) {
  for (size_t i = 0; i < average_.size(); ++i) {
    TDOCK_RETURN_IF_ERROR(state.CopyTensor(absl::StrCat(i), average_[i]));
  }
  return absl::OkStatus();
}

void WeightAverage::Swap() {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const at::Tensor kept = weights_[i].detach().clone();
    weights_[i].detach().copy_(average_[i]);
    average_[i] = kept.to(average_[i].scalar_type());
  }
}

}  // namespace tdock::trainer
