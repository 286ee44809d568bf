#include "trainer/stages/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "trainer/stages/rounding.h"

namespace tdock::trainer {
namespace {

constexpr int64_t kLeastInBytes = 4096;
// Numbers of a parameter stepped by itself that are in float32 at the same time.
constexpr int64_t kStretch = int64_t{1} << 20;

// What a parameter is stepped in.
at::ScalarType WideType(const at::Tensor& weights) { return at::promoteTypes(weights.scalar_type(), at::kFloat); }

}  // namespace

std::vector<ParameterPart> WholeParts(const std::vector<ParameterGroup>& groups) {
  std::vector<ParameterPart> parts;
  for (const ParameterGroup& group : groups) {
    for (const at::Tensor& parameter : group.parameters) {
      parts.push_back({.weights = parameter,
                       .position = parts.size(),
                       .total = parameter.numel(),
                       .decays = parameter.dim() >= 2,
                       .lr_factor = group.lr_factor});
    }
  }
  return parts;
}

AdamW::AdamW(std::vector<ParameterPart> parts, const AdamWOptions& options)
    : options_(options), parts_(std::move(parts)) {
  uint64_t draws = 0;
  for (const ParameterPart& part : parts_) {
    const bool alone = options_.offload || MomentsOf(part) == MomentType::kInt8 ||
                       part.weights.scalar_type() != WideType(part.weights);
    // Empty parts count, so that all ranks count alike.
    const uint64_t own = alone ? draws++ : 0;
    if (part.weights.numel() == 0) continue;
    if (alone) {
      AddAlone(part, own);
    } else {
      AddToGroup(part);
    }
  }
}

MomentType AdamW::MomentsOf(const ParameterPart& part) const {
  return part.total < kLeastInBytes ? MomentType::kFloat32 : options_.moments;
}

AdamW::Rates AdamW::RatesOf(const ParameterPart& part) const {
  return {part.lr_factor, part.decays ? options_.weight_decay : 0.0};
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

void AdamW::AddAlone(const ParameterPart& part, uint64_t draws) {
  const MomentType type = MomentsOf(part);
  const at::Tensor own = part.weights.detach();
  const at::Tensor weights =
      options_.offload ? own.to(at::kCPU, WideType(own), /*non_blocking=*/false, /*copy=*/true) : own;
  alone_.push_back({.part = &part,
                    .draws = draws,
                    .weights = weights,
                    .rates = RatesOf(part),
                    .first = Moment(weights, type, BlockBytes::Range::kSigned),
                    .second = Moment(weights, type, BlockBytes::Range::kNotNegative)});
}

void AdamW::AddToGroup(const ParameterPart& part) {
  Group& group = GroupOf(RatesOf(part));
  group.parts.push_back(&part);
  group.weights.push_back(part.weights);
  group.first_moments.push_back(at::zeros_like(part.weights, at::TensorOptions().requires_grad(false)));
  group.second_moments.push_back(at::zeros_like(part.weights, at::TensorOptions().requires_grad(false)));
  group.step_counts.push_back(at::zeros({}, part.weights.options().dtype(at::kFloat).requires_grad(false)));
}

AdamW::Group& AdamW::GroupOf(const Rates& rates) {
  const auto found = std::find_if(groups_.begin(), groups_.end(), [&](const Group& group) {
    return group.rates.lr_factor == rates.lr_factor && group.rates.weight_decay == rates.weight_decay;
  });
  if (found != groups_.end()) return *found;
  groups_.push_back({.rates = rates});
  return groups_.back();
}

double AdamW::Step(double lr, double loss_scale) {
  const double norm = std::sqrt(SquaredNorm(loss_scale));
  StepWithNorm(norm, lr, loss_scale);
  return norm;
}

double AdamW::SquaredNorm(double loss_scale) const {
  at::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = Gradients();
  if (gradients.empty()) return 0;
  const at::Tensor norms = at::stack(at::_foreach_norm(gradients, 2)).to(at::kDouble);
  return norms.square().sum().item<double>() / (loss_scale * loss_scale);
}

void AdamW::StepWithNorm(double norm, double lr, double loss_scale) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients = Gradients();
  if (std::isfinite(norm)) {
    ++steps_;
    const double clipped = options_.clip_grad > 0 && norm > options_.clip_grad ? options_.clip_grad / norm : 1.0;
    if (clipped != loss_scale && !gradients.empty()) at::_foreach_mul_(gradients, clipped / loss_scale);
    for (Group& group : groups_) {
      std::vector<at::Tensor> group_gradients;
      for (const at::Tensor& weights : group.weights) group_gradients.push_back(weights.grad());
      at::_foreach_add_(group.step_counts, 1);
      at::_fused_adamw_(group.weights, group_gradients, group.first_moments, group.second_moments, {},
                        group.step_counts, lr * group.rates.lr_factor, options_.beta1, options_.beta2,
                        group.rates.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false);
    }
    const uint64_t seed = DeriveSeed(options_.seed, static_cast<uint64_t>(steps_));
    for (Alone& alone : alone_) {
      const uint64_t of_parameter = DeriveSeed(seed, alone.draws);
      const auto begin = static_cast<uint64_t>(alone.part->begin);
      StepAlone(alone, lr, Rng(begin == 0 ? of_parameter : DeriveSeed(of_parameter, begin)));
    }
  }
  DropGradients();
}

void AdamW::DropGradients() {
  for (const ParameterPart& part : parts_) at::Tensor(part.weights).mutable_grad() = at::Tensor();
}

std::vector<at::Tensor> AdamW::Gradients() const {
  std::vector<at::Tensor> gradients;
  for (const ParameterPart& part : parts_) {
    if (part.weights.numel() == 0) continue;
    TORCH_CHECK(part.weights.grad().defined(), "a step without gradients");
    gradients.push_back(part.weights.grad());
  }
  return gradients;
}

std::vector<AdamW::Stored> AdamW::Tensors() const {
  std::vector<Stored> stored;
  for (const Group& group : groups_) {
    for (size_t i = 0; i < group.parts.size(); ++i) {
      const ParameterPart* const part = group.parts[i];
      stored.push_back({absl::StrCat("first/", part->position), part, 1, group.first_moments[i].view({-1})});
      stored.push_back({absl::StrCat("second/", part->position), part, 1, group.second_moments[i].view({-1})});
    }
  }
  for (const Alone& alone : alone_) {
    const auto add = [&](const char* name, const Moment& moment) {
      for (const auto& [kind, tensor] : moment.Tensors()) {
        const int64_t per = kind == absl::string_view("/scales") ? BlockBytes::kBlock : 1;
        stored.push_back({absl::StrCat(name, alone.part->position, kind), alone.part, per, tensor});
      }
    };
    add("first/", alone.first);
    add("second/", alone.second);
    if (options_.offload) {
      stored.push_back({absl::StrCat("weights/", alone.part->position), alone.part, 1, alone.weights});
    }
  }
  return stored;
}

void AdamW::Save(State& state) const {
  state.SetInteger("steps", steps_);
  for (const Stored& stored : Tensors()) {
    if (stored.part->is_whole()) {
      state.SetTensor(stored.name, stored.tensor);
    } else {
      state.SetPart(stored.name, stored.begin(), stored.total(), stored.tensor);
    }
  }
}

absl::Status AdamW::Load(const State& state) {
  at::NoGradGuard no_grad;
  TDOCK_ASSIGN_OR_RETURN(steps_, state.Integer("steps"));
  for (const Stored& stored : Tensors()) {
    TDOCK_RETURN_IF_ERROR(state.CopyPart(stored.name, stored.begin(), stored.total(), stored.tensor));
  }
  for (Group& group : groups_) {
    for (at::Tensor& count : group.step_counts) count.fill_(steps_);
  }
  return absl::OkStatus();
}

void AdamW::StepAlone(Alone& alone, double lr, Rng rng) {
  const at::Tensor all = alone.weights.view({-1});
  const at::Tensor gradient = alone.part->weights.grad().reshape({-1});
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
  if (options_.offload) at::Tensor(alone.part->weights).copy_(alone.weights);
}

}  // namespace tdock::trainer
