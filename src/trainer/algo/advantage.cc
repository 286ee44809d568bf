#include "trainer/algo/advantage.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

namespace tdock::algo {
namespace {

// Rewards by group, in float64.
class Grouped {
 public:
  Grouped(const at::Tensor& rewards, const at::Tensor& groups) {
    TORCH_CHECK(rewards.dim() == 1 && groups.sizes() == rewards.sizes(),
                "rewards and groups must be vectors of one length, not ", rewards.sizes(), " and ", groups.sizes());
    TORCH_CHECK(at::isFloatingType(rewards.scalar_type()), "rewards must be floating-point numbers, not ",
                rewards.scalar_type());
    dtype_ = rewards.scalar_type();
    std::tie(names_, group_, std::ignore) = at::_unique2(groups, /*sorted=*/true, /*return_inverse=*/true);
    at::Tensor r = rewards.detach().to(at::kDouble);
    r = r.masked_fill(at::isfinite(r).logical_not(), std::numeric_limits<double>::quiet_NaN());
    zeros_ = at::zeros({names_.numel()}, r.options());
    size_ = Sum(at::ones_like(r));
    single_ = size_ == 1;
    // Rewards are counted from the least of their group, so that equal ones lie on their mean exactly, whatever their
    // value.
    r_ = r - Of(Extreme("amin", r).masked_fill(single_, 0.0));
    centred_ = r_ - Of((Sum(r_) / size_).masked_fill(single_, 0.0));
  }

  at::Tensor Sum(const at::Tensor& x) const { return zeros_.index_add(0, group_, x); }
  at::Tensor Extreme(const char* which, const at::Tensor& x) const {
    return zeros_.scatter_reduce(0, group_, x, which, /*include_self=*/false);
  }
  at::Tensor Of(const at::Tensor& per_group) const { return per_group.index_select(0, group_); }
  at::Tensor Result(const at::Tensor& x) const { return x.to(dtype_); }

  // Of samples.
  const at::Tensor& r() const { return r_; }              // less the least of its group; of a group of one: as it was
  const at::Tensor& centred() const { return centred_; }  // r − μ
  at::Tensor size() const { return Of(size_); }
  at::Tensor single() const { return Of(single_); }
  at::Tensor Deviation() const {
    const at::Tensor variance = Sum(centred_.square()) / (size_ - 1).clamp_min(1.0);
    return Of(variance.sqrt().masked_fill(single_, 1.0));
  }
  // The name of the first group for which a condition, bool [groups], holds; or nothing.
  std::optional<int64_t> First(const at::Tensor& condition) const {
    const at::Tensor found = condition.nonzero();
    if (found.numel() == 0) return std::nullopt;
    return names_[found[0][0].item<int64_t>()].item<int64_t>();
  }
  const at::Tensor& is_single() const { return single_; }

 private:
  at::ScalarType dtype_ = at::kFloat;
  at::Tensor names_, group_, zeros_, size_, single_, r_, centred_;
};

at::Tensor OnHost(const at::Tensor& x, at::ScalarType dtype) { return x.detach().to(at::kCPU, dtype).contiguous(); }

// Calls visit(i, follows) for each token that counts, from the last to the first; `follows` says whether the one called
// for before is of the same sequence.
template <class Visit>
void ForEachBackwards(const Tokens& tokens, Visit&& visit) {
  TORCH_CHECK(tokens.sequence.defined(), "this needs to know which sequences the tokens make up: Tokens::sequence");
  const at::Tensor counted = OnHost(tokens.mask != 0, at::kBool);
  const at::Tensor sequence = OnHost(tokens.sequence, at::kLong);
  const bool* const counts = counted.const_data_ptr<bool>();
  const int64_t* const of = sequence.const_data_ptr<int64_t>();
  int64_t previous = -1;
  for (int64_t i = counted.size(0) - 1; i >= 0; --i) {
    if (!counts[i]) continue;
    visit(i, of[i] == previous);
    previous = of[i];
  }
}

}  // namespace

at::Tensor GrpoAdvantages(const at::Tensor& rewards, const at::Tensor& groups, const GrpoOptions& options) {
  const Grouped by(rewards, groups);
  if (!options.divide_by_deviation) return by.Result(by.centred());
  return by.Result(by.centred() / (by.Deviation() + options.epsilon));
}

at::Tensor PassAtKAdvantages(const at::Tensor& rewards, const at::Tensor& groups, const GrpoOptions& options) {
  const Grouped by(rewards, groups);
  const std::optional<int64_t> single = by.First(by.is_single());
  TORCH_CHECK(!single, "pass@k compares the two best samples of a group, and group ", *single, " has one");
  // The best of a group is the first of those with the highest reward; the second is the best of the others.
  const at::Tensor best = by.Of(by.Extreme("amax", by.r()));
  const at::Tensor place = at::arange(rewards.numel(), by.r().options());
  const at::Tensor not_best = (by.r() == best).logical_not();
  const at::Tensor first = by.Of(by.Extreme("amin", place.masked_fill(not_best, static_cast<double>(rewards.numel()))));
  const at::Tensor is_first = place == first;
  const at::Tensor others = by.r().masked_fill(is_first, -std::numeric_limits<double>::infinity());
  const at::Tensor zero = is_first.logical_or(best.isnan()).logical_not();
  const at::Tensor lead = (best - by.Of(by.Extreme("amax", others))).masked_fill(zero, 0.0);
  return by.Result(options.divide_by_deviation ? lead / (by.Deviation() + options.epsilon) : lead);
}

at::Tensor RlooAdvantages(const at::Tensor& rewards, const at::Tensor& groups) {
  const Grouped by(rewards, groups);
  return by.Result(by.centred() * by.size() / (by.size() - 1).clamp_min(1.0));
}

at::Tensor OpoAdvantages(const at::Tensor& rewards, const at::Tensor& groups, const at::Tensor& lengths) {
  TORCH_CHECK(lengths.sizes() == rewards.sizes(), "lengths of ", lengths.sizes(), " do not fit rewards of ",
              rewards.sizes());
  const Grouped by(rewards, groups);
  const at::Tensor weight = lengths.detach().to(at::kDouble);
  const at::Tensor total = by.Sum(weight);
  const std::optional<int64_t> empty = by.First(total <= 0);
  TORCH_CHECK(!empty, "no sample of group ", *empty, " has a token");
  const at::Tensor baseline = by.Of(by.Sum(weight * by.r()) / total).masked_fill(by.single(), 0.0);
  return by.Result(by.r() - baseline);
}

at::Tensor GpgAdvantages(const at::Tensor& rewards, const at::Tensor& groups, GpgScale scale) {
  const Grouped by(rewards, groups);
  const at::Tensor counted =
      scale == GpgScale::kRewardsNotZero ? rewards.detach() != 0 : by.Of(by.Extreme("amax", by.centred().abs())) != 0;
  const double alpha =
      static_cast<double>(rewards.numel()) / std::max<double>(1, static_cast<double>(counted.sum().item<int64_t>()));
  return by.Result(alpha * by.centred());
}

at::Tensor ReinforcePlusPlusBaselineAdvantages(const at::Tensor& rewards, const at::Tensor& groups,
                                               const Tokens& tokens) {
  return Whiten(Spread(GrpoAdvantages(rewards, groups, {.divide_by_deviation = false}), tokens), tokens);
}

at::Tensor ReturnsToGo(const at::Tensor& token_rewards, const Tokens& tokens, double gamma) {
  CheckTokens("rewards", token_rewards, tokens);
  const at::Tensor rewards = OnHost(token_rewards, at::kDouble);
  const at::Tensor returns = at::zeros_like(rewards);
  const double* const r = rewards.const_data_ptr<double>();
  double* const result = returns.mutable_data_ptr<double>();
  double later = 0;
  ForEachBackwards(tokens, [&](int64_t i, bool follows) {
    later = r[i] + (follows ? gamma * later : 0.0);
    result[i] = later;
  });
  return returns.to(token_rewards.options().requires_grad(false));
}

TokenAdvantages ReinforcePlusPlusAdvantages(const at::Tensor& token_rewards, const Tokens& tokens, double gamma) {
  const at::Tensor returns = ReturnsToGo(token_rewards, tokens, gamma);
  return {Whiten(returns, tokens), returns};
}

TokenAdvantages RemaxAdvantages(const at::Tensor& token_rewards, const at::Tensor& baselines, const Tokens& tokens) {
  const at::Tensor returns = ReturnsToGo(token_rewards, tokens);
  const at::Tensor of_tokens = Spread(baselines.detach().to(returns.options()), tokens);
  CheckTokens("baselines", of_tokens, tokens);
  return {Unmasked(returns - of_tokens, tokens.mask), returns};
}

TokenAdvantages GaeAdvantages(const at::Tensor& token_rewards, const at::Tensor& values, const Tokens& tokens,
                              const GaeOptions& options) {
  CheckTokens("rewards", token_rewards, tokens);
  CheckTokens("values", values, tokens);
  const at::Tensor rewards = OnHost(token_rewards, at::kDouble), predicted = OnHost(values, at::kDouble);
  const at::Tensor advantages = at::zeros_like(rewards), returns = at::zeros_like(rewards);
  const double* const r = rewards.const_data_ptr<double>();
  const double* const v = predicted.const_data_ptr<double>();
  double* const a = advantages.mutable_data_ptr<double>();
  double* const g = returns.mutable_data_ptr<double>();
  double next_value = 0, next_advantage = 0;
  ForEachBackwards(tokens, [&](int64_t i, bool follows) {
    if (!follows) next_value = next_advantage = 0;
    const double delta = r[i] + options.gamma * next_value - v[i];
    a[i] = next_advantage = delta + options.gamma * options.lambda * next_advantage;
    g[i] = a[i] + v[i];
    next_value = v[i];
  });
  const auto like = token_rewards.options().requires_grad(false);
  const Tokens on_host{tokens.mask.to(at::kCPU), {}, 0};
  return {(options.whiten ? Whiten(advantages, on_host) : advantages).to(like), returns.to(like)};
}

}  // namespace tdock::algo
