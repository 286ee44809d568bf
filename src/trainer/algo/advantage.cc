#include "trainer/algo/advantage.h"

#include <ATen/ATen.h>

#include <tuple>

namespace tdock::algo {

at::Tensor GrpoAdvantages(const at::Tensor& rewards, const at::Tensor& groups, double epsilon) {
  TORCH_CHECK(rewards.dim() == 1 && groups.sizes() == rewards.sizes(),
              "rewards and groups must be vectors of one length, not ", rewards.sizes(), " and ", groups.sizes());
  TORCH_CHECK(at::isFloatingType(rewards.scalar_type()), "rewards must be floating-point numbers, not ",
              rewards.scalar_type());
  at::Tensor distinct, group;
  std::tie(distinct, group, std::ignore) = at::_unique2(groups, /*sorted=*/true, /*return_inverse=*/true);
  const at::Tensor absolute = rewards.to(at::kDouble);
  const at::Tensor zeros = at::zeros({distinct.numel()}, absolute.options());
  const auto sum_by_group = [&](const at::Tensor& x) { return zeros.index_add(0, group, x); };
  const auto of_group = [&](const at::Tensor& x) { return x.index_select(0, group); };

  const at::Tensor size = sum_by_group(at::ones_like(absolute));
  const at::Tensor single = size == 1;
  // Rewards are counted from the least of their group, so that equal ones lie on their mean exactly, whatever their
  // value.
  const at::Tensor least = zeros.scatter_reduce(0, group, absolute, "amin", /*include_self=*/false);
  const at::Tensor r = absolute - of_group(least.masked_fill(single, 0.0));
  const at::Tensor mean = (sum_by_group(r) / size).masked_fill(single, 0.0);
  const at::Tensor centred = r - of_group(mean);
  const at::Tensor variance = sum_by_group(centred.square()) / (size - 1).clamp_min(1.0);
  const at::Tensor deviation = variance.sqrt().masked_fill(single, 1.0);
  return (centred / (of_group(deviation) + epsilon)).to(rewards.scalar_type());
}

}  // namespace tdock::algo
