#include "trainer/algo/covariance.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace tdock::algo {
namespace {

struct Covariances {
  at::Tensor places;  // int64 [n]: the tokens that count
  at::Tensor values;  // float64 [n]
};

Covariances CovariancesOf(const at::Tensor& log_probs, const at::Tensor& advantages, const Tokens& tokens) {
  CheckTokens("log-probabilities", log_probs, tokens);
  CheckTokens("advantages", advantages, tokens);
  const at::Tensor places = (tokens.mask != 0).nonzero().squeeze(1);
  const auto centred = [&](const at::Tensor& all) {
    const at::Tensor x = all.detach().index_select(0, places).to(at::kDouble);
    return x - x.mean();
  };
  return {places, centred(advantages) * centred(log_probs)};
}

int64_t Share(double fraction, int64_t count) {
  TORCH_CHECK(fraction > 0 && fraction <= 1, "a fraction of the tokens must be above 0 and at most 1, not ", fraction);
  return std::min(count, std::max<int64_t>(1, static_cast<int64_t>(fraction * static_cast<double>(count))));
}

at::Tensor Marked(const at::Tensor& places, const Tokens& tokens) {
  return at::zeros(tokens.mask.sizes(), tokens.mask.options().dtype(at::kBool)).index_fill(0, places, true);
}

}  // namespace

at::Tensor LargestCovariance(const at::Tensor& log_probs, const at::Tensor& advantages, const Tokens& tokens,
                             double fraction) {
  at::NoGradGuard no_grad;
  const Covariances all = CovariancesOf(log_probs, advantages, tokens);
  const int64_t count = Share(fraction, all.values.numel());
  return Marked(all.places.index_select(0, std::get<1>(all.values.topk(count))), tokens);
}

at::Tensor RandomCovariance(const at::Tensor& log_probs, const at::Tensor& advantages, const Tokens& tokens,
                            uint64_t seed, const CovarianceRange& range) {
  at::NoGradGuard no_grad;
  const Covariances all = CovariancesOf(log_probs, advantages, tokens);
  const int64_t count = Share(range.fraction, all.values.numel());
  const at::Tensor within = all.places.masked_select((all.values > range.low).logical_and(all.values < range.high));
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor order = at::randperm(within.numel(), generator, at::kLong).to(within.device());
  return Marked(within.index_select(0, order.narrow(0, 0, std::min(count, within.numel()))), tokens);
}

}  // namespace tdock::algo
