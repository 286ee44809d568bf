// Losses over the tokens of responses, and how they are summed up.
//
// Tokens are a flat vector [N]: the responses of all samples one after another, without padding. What a mask of 0 marks
// (tool output, padding) adds nothing to any loss, mean or gradient.
#pragma once

#include <ATen/core/Tensor.h>

namespace tdock::algo {

struct PolicyLoss {
  at::Tensor per_token;  // [N], with gradients
  at::Tensor ratio;      // [N], new over old probability, without gradients
  at::Tensor clipped;    // bool [N]: where the clipped term is the larger one
};

// The clipped surrogate of PPO (Schulman et al. 2017, "Proximal policy optimization algorithms", eq. 7), as a loss:
//
//   L = max(−A·ρ, −A·clamp(ρ, 1 − clip_low, 1 + clip_high)),   ρ = exp(new − old)
//
// All arguments are [N] (advantages without gradients).
PolicyLoss PpoClipLoss(const at::Tensor& log_probs, const at::Tensor& old_log_probs, const at::Tensor& advantages,
                       double clip_low, double clip_high);

// The token mean: Σ values·mask / token_count. `token_count` is the number of unmasked tokens of the whole mini-batch,
// on all ranks and in all micro-batches, so that the sum of the parts' gradients is the gradient of the whole, however
// it was cut. Throws c10::Error where it is not positive.
at::Tensor TokenMean(const at::Tensor& values, const at::Tensor& mask, double token_count);

}  // namespace tdock::algo
