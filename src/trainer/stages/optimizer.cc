#include "trainer/stages/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "trainer/stages/rounding.h"

namespace tdock::trainer {
namespace {

constexpr int64_t kLeastInBytes = 4096;
// Numbers of a parameter stepped by itself that are in float32 at the same time.
constexpr int64_t kStretch = int64_t{1} << 20;

// What a parameter is stepped in.
at::ScalarType WideType(const at::Tensor& parameter) { return at::promoteTypes(parameter.scalar_type(), at::kFloat); }

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
      Add(parameter, parameter.dim() >= 2 ? matrices : vectors);
    }
    for (Group& group : {std::ref(matrices), std::ref(vectors)}) {
      if (!group.parameters.empty()) groups_.push_back(std::move(group));
    }
  }
}

AdamW::Moment::Moment(const at::Tensor& weights, MomentType type, BlockBytes::Range range) : range_(range) {
  if (type == MomentType::kInt8) {
    bytes_.emplace(weights.numel(), range, weights.device());
  } else {
    wide_ = at::zeros({weights.numel()}, at::TensorOptions(weights.device()).dtype(WideType(weights)));
  }
}

at::Tensor AdamW::Moment::Load(int64_t begin, int64_t size, at::ScalarType type) const {
  return bytes_.has_value() ? bytes_->Load(begin, size).to(type) : wide_.narrow(0, begin, size);
}

void AdamW::Moment::Store(int64_t begin, const at::Tensor& values, Rng& rng) {
  if (!bytes_.has_value()) return;
  if (range_ == BlockBytes::Range::kSigned) {
    bytes_->Store(begin, values.to(at::kFloat));
  } else {
    // A second moment falls by a share of 1 − β₂ in a step at most, often less than the distance of two codes.
    bytes_->StoreAtRandom(begin, values.to(at::kFloat), rng.Uniform());
  }
}

std::vector<std::pair<const char*, at::Tensor>> AdamW::Moment::Tensors() const {
  if (!bytes_.has_value()) return {{"", wide_}};
  return {{"/codes", bytes_->codes()}, {"/scales", bytes_->scales()}};
}

void AdamW::Add(const at::Tensor& parameter, Group& group) {
  const size_t position = parameters_.size();
  parameters_.push_back(parameter);
  const MomentType type = parameter.numel() < kLeastInBytes ? MomentType::kFloat32 : options_.moments;
  if (options_.offload || type == MomentType::kInt8 || parameter.scalar_type() != WideType(parameter)) {
    const at::Tensor own = parameter.detach();
    const at::Tensor weights =
        options_.offload ? own.to(at::kCPU, WideType(own), /*non_blocking=*/false, /*copy=*/true) : own;
    alone_.push_back({.position = position,
                      .parameter = parameter,
                      .weights = weights,
                      .rates = group.rates,
                      .first = Moment(weights, type, BlockBytes::Range::kSigned),
                      .second = Moment(weights, type, BlockBytes::Range::kNotNegative)});
    return;
  }
  group.positions.push_back(position);
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
    const uint64_t seed = DeriveSeed(options_.seed, static_cast<uint64_t>(steps_));
    for (size_t i = 0; i < alone_.size(); ++i) StepAlone(alone_[i], lr, Rng(DeriveSeed(seed, i)));
  }
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
  return norm;
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::Tensors() const {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const Group& group : groups_) {
    for (size_t i = 0; i < group.positions.size(); ++i) {
      tensors.emplace_back(absl::StrCat("first/", group.positions[i]), group.first_moments[i].view({-1}));
      tensors.emplace_back(absl::StrCat("second/", group.positions[i]), group.second_moments[i].view({-1}));
    }
  }
  for (const Alone& alone : alone_) {
    const auto add = [&](const char* name, const Moment& moment) {
      for (const auto& [part, tensor] : moment.Tensors()) {
        tensors.emplace_back(absl::StrCat(name, alone.position, part), tensor);
      }
    };
    add("first/", alone.first);
    add("second/", alone.second);
    if (options_.offload) tensors.emplace_back(absl::StrCat("weights/", alone.position), alone.weights);
  }
  return tensors;
}

void AdamW::Save(State& state) const {
  state.SetInteger("steps", steps_);
  for (const auto& [name, tensor] : Tensors()) state.SetTensor(name, tensor);
}

absl::Status AdamW::Load(const State& state) {
  at::NoGradGuard no_grad;
  TDOCK_ASSIGN_OR_RETURN(steps_, state.Integer("steps"));
  for (const auto& [name, tensor] : Tensors()) TDOCK_RETURN_IF_ERROR(state.CopyTensor(name, tensor));
  for (Group& group : groups_) {
    for (at::Tensor& count : group.step_counts) count.fill_(steps_);
  }
  return absl::OkStatus();
}

void AdamW::StepAlone(Alone& alone, double lr, Rng rng) {
  const at::Tensor all = alone.weights.view({-1});
  const at::Tensor gradient = alone.parameter.grad().reshape({-1});
  const at::ScalarType type = WideType(all);  // the kernel takes everything in one
  // The kernel takes the number of this step.
  const at::Tensor count = at::full({}, steps_, all.options().dtype(at::kFloat));
  for (int64_t begin = 0; begin < all.numel(); begin += kStretch) {
    const int64_t size = std::min(kStretch, all.numel() - begin);
    at::Tensor stored = all.narrow(0, begin, size);
    const at::Tensor weights = stored.to(type);
    const at::Tensor first = alone.first.Load(begin, size, type);
    const at::Tensor second = alone.second.Load(begin, size, type);
    const at::Tensor part = gradient.narrow(0, begin, size).to(all.device(), type);
    at::_fused_adamw_({weights}, {part}, {first}, {second}, {}, {count}, lr * alone.rates.lr_factor, options_.beta1,
                      options_.beta2, alone.rates.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false);
    if (stored.scalar_type() != type) stored.copy_(RoundedAtRandom(weights, rng.Next()));
    alone.first.Store(begin, first, rng);
    alone.second.Store(begin, second, rng);
  }
  if (options_.offload) alone.parameter.copy_(alone.weights);
}

}  // namespace tdock::trainer
