// Losses over the tokens of responses, and how they are summed up.
//
// Tokens are a flat vector [N]: the responses of all samples one after another, without padding. What a mask of 0 marks
// (tool output, padding) must add nothing to any loss, mean or gradient: TokenMean() leaves it out of the value, and
// Unmasked(), put around the inputs of a loss, keeps it out of the gradients.
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

// `values` where the mask is not 0, and 0 with a gradient of exactly 0 elsewhere. For log-probabilities on their way
// into a loss: those of a masked token may be anything, and a ratio that overflows turns a gradient of 0 into 0·∞.
at::Tensor Unmasked(const at::Tensor& values, const at::Tensor& mask);

// The token mean: Σ values·mask / token_count. `token_count` is the number of unmasked tokens of the whole mini-batch,
// on all ranks and in all micro-batches, so that the sum of the parts' gradients is the gradient of the whole, however
// it was cut. Throws c10::Error where it is not positive.
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
