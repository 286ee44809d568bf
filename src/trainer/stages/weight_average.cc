#include "trainer/stages/weight_average.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::trainer {
namespace {

std::vector<ParameterPart> NotEmpty(std::vector<ParameterPart> parts) {
  std::erase_if(parts, [](const ParameterPart& part) { return part.weights.numel() == 0; });
  return parts;
}

}  // namespace

WeightAverage::WeightAverage(std::vector<ParameterPart> parts, double decay)
    : parts_(NotEmpty(std::move(parts))), decay_(decay) {
  for (const ParameterPart& part : parts_) {
    const at::ScalarType type = at::promoteTypes(part.weights.scalar_type(), at::kFloat);
    average_.push_back(part.weights.detach().to(type, /*non_blocking=*/false, /*copy=*/true));
  }
}

void WeightAverage::Update() {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < parts_.size(); ++i) {
    average_[i].lerp_(parts_[i].weights.detach().to(average_[i].scalar_type()), 1.0 - decay_);
  }
}

void WeightAverage::Save(State& state) const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const ParameterPart& part = parts_[i];
    const std::string name = absl::StrCat(part.position);
    if (part.is_whole()) {
      state.SetTensor(name, average_[i]);
    } else {
      state.SetPart(name, part.begin, part.total, average_[i]);
    }
  }
}

absl::Status WeightAverage::Load(const State& state) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const ParameterPart& part = parts_[i];
    TDOCK_RETURN_IF_ERROR(state.CopyPart(absl::StrCat(part.position), part.begin, part.total, average_[i]));
  }
  return absl::OkStatus();
}

void WeightAverage::Swap() {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const at::Tensor weights = parts_[i].weights.detach();
    const at::Tensor kept = weights.clone();
    weights.copy_(average_[i]);
    average_[i] = kept.to(average_[i].scalar_type());
  }
}

}  // namespace tdock::trainer
