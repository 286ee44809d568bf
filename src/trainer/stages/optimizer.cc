#include "trainer/stages/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tdock::trainer {

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

AdamW::AdamW(std::vector<at::Tensor> parameters, const AdamWOptions& options)
    : options_(options), parameters_(std::move(parameters)), groups_(2) {
  groups_[0].weight_decay = options.weight_decay;
  groups_[1].weight_decay = 0.0;
  for (const at::Tensor& parameter : parameters_) {
    Group& group = groups_[parameter.dim() >= 2 ? 0 : 1];
    group.parameters.push_back(parameter);
    group.first_moments.push_back(at::zeros_like(parameter, at::TensorOptions().requires_grad(false)));
    group.second_moments.push_back(at::zeros_like(parameter, at::TensorOptions().requires_grad(false)));
    group.step_counts.push_back(at::zeros({}, parameter.options().dtype(at::kFloat).requires_grad(false)));
  }
}

double AdamW::Step(double lr) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) {
    TORCH_CHECK(parameter.grad().defined(), "a step without gradients");
    gradients.push_back(parameter.grad());
  }
  const double norm = at::stack(at::_foreach_norm(gradients, 2)).to(at::kDouble).norm().item<double>();
  if (std::isfinite(norm)) {
    if (options_.clip_grad > 0 && norm > options_.clip_grad) at::_foreach_mul_(gradients, options_.clip_grad / norm);
    for (Group& group : groups_) {
      if (group.parameters.empty()) continue;
      std::vector<at::Tensor> group_gradients;
      for (const at::Tensor& parameter : group.parameters) group_gradients.push_back(parameter.grad());
      at::_foreach_add_(group.step_counts, 1);
      at::_fused_adamw_(group.parameters, group_gradients, group.first_moments, group.second_moments, {},
                        group.step_counts, lr, options_.beta1, options_.beta2, group.weight_decay, options_.eps,
                        /*amsgrad=*/false, /*maximize=*/false);
    }
  }
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
  return norm;
}

}  // namespace tdock::trainer
