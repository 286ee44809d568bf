#include "trainer/stages/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

namespace tdock::trainer {
namespace {

constexpr int64_t kLeastInBytes = 4096;
// Numbers whose moments are in float32 at the same time.
constexpr int64_t kStretch = int64_t{1} << 20;

}  // namespace

double LrSchedule::Factor(int64_t step) const {
  if (step < warmup_steps) return static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  const double length = static_cast<double>(std::max<int64_t>(total_steps - warmup_steps, 1));
  const double done = std::min(static_cast<double>(step - warmup_steps) / length, 1.0);
  switch (decay) {
    case LrDecay::kConstant:
      return 1.0;
    case LrDecay::kLinear:
      return 1.0 - (1.0 - floor) * done;
    case LrDecay::kCosine:
      return floor + (1.0 - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
  }
  return 1.0;
}

AdamW::AdamW(const std::vector<ParameterGroup>& groups, const AdamWOptions& options) : options_(options) {
  for (const ParameterGroup& given : groups) {
    Group matrices{.rates = {given.lr_factor, options.weight_decay}}, vectors{.rates = {given.lr_factor, 0.0}};
    for (const at::Tensor& parameter : given.parameters) {
      parameters_.push_back(parameter);
      Add(parameter, parameter.dim() >= 2 ? matrices : vectors);
    }
    for (Group& group : {std::ref(matrices), std::ref(vectors)}) {
      if (!group.parameters.empty()) groups_.push_back(std::move(group));
    }
  }
}

void AdamW::Add(const at::Tensor& parameter, Group& group) {
  if (options_.moments == MomentType::kInt8 && parameter.numel() >= kLeastInBytes) {
    in_bytes_.push_back({.parameter = parameter,
                         .rates = group.rates,
                         .first = BlockBytes(parameter.numel(), BlockBytes::Range::kSigned, parameter.device()),
                         .second = BlockBytes(parameter.numel(), BlockBytes::Range::kNotNegative, parameter.device())});
    return;
  }
  group.parameters.push_back(parameter);
  group.first_moments.push_back(at::zeros_like(parameter, at::TensorOptions().requires_grad(false)));
  group.second_moments.push_back(at::zeros_like(parameter, at::TensorOptions().requires_grad(false)));
  group.step_counts.push_back(at::zeros({}, parameter.options().dtype(at::kFloat).requires_grad(false)));
}

double AdamW::Step(double lr, double loss_scale) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) {
    TORCH_CHECK(parameter.grad().defined(), "a step without gradients");
    gradients.push_back(parameter.grad());
  }
  const double norm = at::stack(at::_foreach_norm(gradients, 2)).to(at::kDouble).norm().item<double>() / loss_scale;
  if (std::isfinite(norm)) {
    ++steps_;
    const double clipped = options_.clip_grad > 0 && norm > options_.clip_grad ? options_.clip_grad / norm : 1.0;
    if (clipped != loss_scale) at::_foreach_mul_(gradients, clipped / loss_scale);
    for (Group& group : groups_) {
      std::vector<at::Tensor> group_gradients;
      for (const at::Tensor& parameter : group.parameters) group_gradients.push_back(parameter.grad());
      at::_foreach_add_(group.step_counts, 1);
      at::_fused_adamw_(group.parameters, group_gradients, group.first_moments, group.second_moments, {},
                        group.step_counts, lr * group.rates.lr_factor, options_.beta1, options_.beta2,
                        group.rates.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false);
    }
    for (size_t i = 0; i < in_bytes_.size(); ++i) {
      StepInBytes(in_bytes_[i], lr, Rng(DeriveSeed(static_cast<uint64_t>(steps_), i)));
    }
  }
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
  return norm;
}

void AdamW::StepInBytes(ByteMoments& moments, double lr, Rng rng) {
  const at::Tensor parameter = moments.parameter.view({-1});
  const at::Tensor gradient = moments.parameter.grad().reshape({-1});
  // The kernel takes the number of this step.
  const at::Tensor count = at::full({}, steps_, parameter.options().dtype(at::kFloat).requires_grad(false));
  for (int64_t begin = 0; begin < parameter.numel(); begin += kStretch) {
    const int64_t size = std::min(kStretch, parameter.numel() - begin);
    // The kernel takes everything in the dtype of the parameter.
    at::Tensor first = moments.first.Load(begin, size).to(parameter.scalar_type());
    at::Tensor second = moments.second.Load(begin, size).to(parameter.scalar_type());
    at::_fused_adamw_({parameter.narrow(0, begin, size)}, {gradient.narrow(0, begin, size)}, {first}, {second}, {},
                      {count}, lr * moments.rates.lr_factor, options_.beta1, options_.beta2, moments.rates.weight_decay,
                      options_.eps, /*amsgrad=*/false, /*maximize=*/false);
    moments.first.Store(begin, first.to(at::kFloat));
    // A second moment falls by a share of 1 − β₂ in a step at most, often less than the distance of two codes.
    moments.second.StoreAtRandom(begin, second.to(at::kFloat), rng.Uniform());
  }
}

}  // namespace tdock::trainer
