#include "algo/advantage.h"

#include <ATen/ATen.h>

namespace tdock::algo {

at::Tensor GrpoAdvantages(const at::Tensor& rewards, const at::Tensor& groups, double epsilon) {
  TORCH_CHECK(rewards.dim() == 1 && groups.sizes() == rewards.sizes(),
              "rewards and groups must be vectors of one length, not ", rewards.sizes(), " and ", groups.sizes());
  // In float64: a group whose rewards are all equal then has a deviation of exactly zero for any reward.
  const at::Tensor r = rewards.to(at::kDouble);
  const at::Tensor group = std::get<1>(at::_unique2(groups, /*sorted=*/true, /*return_inverse=*/true));
  const int64_t count = r.numel() == 0 ? 0 : group.max().item<int64_t>() + 1;
  const auto sum_by_group = [&](const at::Tensor& x) { return at::zeros({count}, x.options()).index_add(0, group, x); };

  const at::Tensor size = sum_by_group(at::ones_like(r));
  const at::Tensor single = size == 1;
  const at::Tensor mean = (sum_by_group(r) / size).masked_fill(single, 0.0);
  const at::Tensor centred = r - mean.index_select(0, group);
  const at::Tensor variance = sum_by_group(centred.square()) / (size - 1).clamp_min(1.0);
  const at::Tensor deviation = variance.sqrt().masked_fill(single, 1.0);
  return (centred / (deviation.index_select(0, group) + epsilon)).to(rewards.scalar_type());
}

}  // namespace tdock::algo
