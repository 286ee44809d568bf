#include "trainer/algo/value_loss.h"

#include <ATen/ATen.h>

namespace tdock::algo {

ValueLoss ComputeValueLoss(const at::Tensor& values, const at::Tensor& old_values, const at::Tensor& returns,
                           const Tokens& tokens, const Counts& counts, const ValueLossOptions& options) {
  TORCH_CHECK(options.clip >= 0, "values are clipped at a distance of 0 or more, not ", options.clip);
  CheckTokens("values", values, tokens);
  CheckTokens("returns", returns, tokens);
  const at::Tensor v = Unmasked(values, tokens.mask), target = Unmasked(returns.detach(), tokens.mask);
  const at::Tensor free = (v - target).square() / 2;
  ValueLoss result{.loss = {}, .per_token = free, .clipped = at::zeros_like(free, at::kBool)};
  if (options.clip > 0) {
    CheckTokens("old values", old_values, tokens);
    const at::Tensor old = Unmasked(old_values.detach(), tokens.mask);
    const at::Tensor held = (v.clamp(old - options.clip, old + options.clip) - target).square() / 2;
    result.per_token = at::maximum(free, held);
    result.clipped = (held > free).detach();
  }
  result.loss = Aggregate(result.per_token, tokens, counts, options.reduction);
  return result;
}

}  // namespace tdock::algo
