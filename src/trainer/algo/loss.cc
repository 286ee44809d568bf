#include "trainer/algo/loss.h"

#include <ATen/ATen.h>

namespace tdock::algo {

PolicyLoss PpoClipLoss(const at::Tensor& log_probs, const at::Tensor& old_log_probs, const at::Tensor& advantages,
                       double clip_low, double clip_high) {
  TORCH_CHECK(log_probs.sizes() == old_log_probs.sizes() && log_probs.sizes() == advantages.sizes(),
              "new and old log-probabilities and advantages must have one shape, not ", log_probs.sizes(), ", ",
              old_log_probs.sizes(), " and ", advantages.sizes());
  const at::Tensor ratio = (log_probs - old_log_probs.detach()).exp();
  const at::Tensor negated = -advantages.detach();
  const at::Tensor free = negated * ratio;
  const at::Tensor held = negated * ratio.clamp(1.0 - clip_low, 1.0 + clip_high);
  return {at::maximum(free, held), ratio.detach(), (held > free).detach()};
}

at::Tensor Unmasked(const at::Tensor& values, const at::Tensor& mask) {
  TORCH_CHECK(values.sizes() == mask.sizes(), "values of ", values.sizes(), " do not fit a mask of ", mask.sizes());
  // Not values·mask: a masked value may be infinite.
  return values.masked_fill(mask == 0, 0.0);
}

at::Tensor TokenMean(const at::Tensor& values, const at::Tensor& mask, double token_count) {
  TORCH_CHECK(token_count > 0, "a mean over ", token_count, " tokens is not defined");
  return Unmasked(values, mask).sum() / token_count;
}

ActorLoss ComputeActorLoss(const at::Tensor& log_probs, const at::Tensor& old_log_probs,
                           const at::Tensor& ref_log_probs, const at::Tensor& advantages, const at::Tensor& mask,
                           double token_count, const ActorLossOptions& options) {
  const at::Tensor own = Unmasked(log_probs, mask);
  ActorLoss result;
  result.policy =
      PpoClipLoss(own, Unmasked(old_log_probs, mask), Unmasked(advantages, mask), options.clip_low, options.clip_high);
  result.kl = KlDivergence(own, Unmasked(ref_log_probs, mask), options.kl_type);
  result.loss = TokenMean(result.policy.per_token + options.kl_coef * result.kl, mask, token_count);
  return result;
}

}  // namespace tdock::algo
