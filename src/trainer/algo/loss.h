// Losses over the tokens of responses, and their reduction.
//
// Tokens are a flat vector [N]: the concatenated responses of all samples, without padding. Tokens with a mask of 0
// (tool output, padding) must contribute nothing to any loss, mean or gradient: TokenMean() excludes them from the
// value, and Unmasked(), applied to the inputs of a loss, from the gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/algo/kl.h"

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
// All arguments are [N]. Gradients flow into the new log-probabilities only: advantages and old ones are constants.
// Where the clipped term is the larger one, the gradient is 0.
PolicyLoss PpoClipLoss(const at::Tensor& log_probs, const at::Tensor& old_log_probs, const at::Tensor& advantages,
                       double clip_low, double clip_high);

// `values` where the mask is not 0, and 0 with a gradient of exactly 0 elsewhere. For log-probabilities that enter a
// loss: those of a masked token may be anything, and a ratio that overflows turns a gradient of 0 into 0·∞.
at::Tensor Unmasked(const at::Tensor& values, const at::Tensor& mask);

// The token mean: Σ values·mask / token_count. `token_count` is the number of unmasked tokens of the whole mini-batch,
// on all ranks and in all micro-batches, so that the gradients of the parts add up to the gradient of the whole,
// however it was split. Throws c10::Error unless it is positive.
at::Tensor TokenMean(const at::Tensor& values, const at::Tensor& mask, double token_count);

struct ActorLossOptions {
  double clip_low = 0.2;
  double clip_high = 0.2;
  double kl_coef = 0.0;
  KlEstimator kl_type = KlEstimator::kK3;
};

// What an actor minimises: the token mean of PPO's clipped surrogate plus kl_coef times the KL to a reference model.
struct ActorLoss {
  at::Tensor loss;    // a scalar, with gradients
  PolicyLoss policy;  // of the masked tokens: that of a ratio of 1 with an advantage of 0
  at::Tensor kl;      // [N], 0 for masked tokens
};

// All tensors are [N]. Masked tokens change neither the loss nor any gradient, whatever they hold.
ActorLoss ComputeActorLoss(const at::Tensor& log_probs, const at::Tensor& old_log_probs,
                           const at::Tensor& ref_log_probs, const at::Tensor& advantages, const at::Tensor& mask,
                           double token_count, const ActorLossOptions& options);

}  // namespace tdock::algo
