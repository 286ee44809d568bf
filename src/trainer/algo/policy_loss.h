// What an actor minimises.
//
// All tensors are flat over the tokens, [N]: see tokens.h. Gradients flow into the policy's log-probabilities and
// entropy only; everything else is a constant. log ρ = new − old is limited to ±20 before exp(), as in verl: beyond
// that, a ratio of 5·10⁸, there is no gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/algo/aggregate.h"
#include "trainer/algo/importance.h"
#include "trainer/algo/kl.h"
#include "trainer/algo/tokens.h"

namespace tdock::algo {

// The loss of a token, with ρ = exp(new − old), A its advantage, clip(x) = clamp(x, 1 − clip_low, 1 + clip_high), sg()
// without gradients, |s| the tokens of its sequence that count:
enum class PolicyLossKind {
  // max(−Aρ, −A·clip(ρ)) (Schulman et al. 2017, "Proximal policy optimization algorithms", eq. 7). Clip-higher (Yu et
  // al. 2025, "DAPO", eq. 10) is a clip_high above clip_low. With dual_clip = c, where A < 0, at most −A·c (Ye et al.
  // 2020, "Mastering complex control in MOBA games", arXiv:1912.09729).
  kPpoClip,
  // The same, of the sequence's ratio s = exp(Σ(new − old) / |s|), with the gradient of sg(s)·p/sg(p) at each token
  // (Zheng et al. 2025, "GSPO", eq. 7 and 13).
  kGspo,
  // The same, of the probability of the whole sequence, s = exp(Σ(new − old)) (Ahmadian et al. 2024; TRL's RLOO).
  kSequenceClip,
  // −sg(clip(ρ))·A·log p (MiniMax 2025, "MiniMax-M1", eq. 4). A clip_low of 1 or more is no lower limit (TRL).
  kCispo,
  // −A·log p (Chu et al. 2025, "GPG", arXiv:2504.02546). Without old log-probabilities.
  kGpg,
  // kPpoClip, but 0 for the selected tokens (Cui et al. 2025, "The entropy mechanism", arXiv:2505.22617): covariance.h.
  kClipCov,
  // −Aρ, and + cov_kl_coef·|log ρ| for the selected tokens (the same). Not clipped.
  kKlCov,
  // −A·exp(Σ x / |s|), x = log ρ, held at −clip_low or clip_high where it has moved the way A pushes; A is the mean of
  // the sequence's advantages (Zhao et al. 2025, "Geometric-mean policy optimization", arXiv:2507.20673).
  kGmpo,
  // −A·(4/τ)·σ(τ(ρ − 1)), τ by the sign of A (Gao et al. 2025, "Soft adaptive policy optimization", arXiv:2511.20347).
  kSapo,
  // −φ(w)·A·log p, with the constant φ(w) = exp(λ + k·log w − λ·w) of w = exp(Σ(new − old)), the sequence's; k and λ by
  // the sign of A ("VESPO", arXiv:2602.10693). rollout_weights are factors of w, and not of the loss.
  kVespo,
};

// By the sign of an advantage.
struct BySign {
  double positive = 0;
  double negative = 0;
};

struct ActorLossOptions {
  double clip_low = 0.2;
  double clip_high = 0.2;
  double dual_clip = 0.0;  // above 1; 0: none. verl's clip_ratio_c is 3
  double kl_coef = 0.0;
  KlEstimator kl_type = KlEstimator::kK3;
  double entropy_coef = 0.0;
  PolicyLossKind kind = PolicyLossKind::kPpoClip;
  double cov_kl_coef = 1.0;  // of kKlCov
  BySign sapo_tau = {1.0, 1.05};
  BySign vespo_k = {2.0, 3.0};
  BySign vespo_lambda = {3.0, 2.0};
  // Must be kSeqMeanTokenMean for kGspo, kSequenceClip and kGmpo: what they give a token is the loss of its sequence.
  // kGspo takes kSeqMeanTokenSum, too: a sequence weighs by its length (LUSPO).
  Reduction reduction = {};
};

// Throws for a number out of range and an aggregation that the kind does not take.
void CheckActorLossOptions(const ActorLossOptions& options);

struct ActorInputs {
  at::Tensor log_probs;           // under the policy, with gradients
  at::Tensor old_log_probs = {};  // under the policy as it was before the step; kGpg does without
  at::Tensor advantages;
  at::Tensor ref_log_probs = {};  // under the reference; may be undefined if kl_coef is 0
  at::Tensor entropy = {};  // of the policy's distributions, with gradients if log_probs have some; may be undefined
                            // if entropy_coef is 0
  at::Tensor rollout_weights = {};  // of importance.h, may be undefined: the policy loss is multiplied by them
  // What rollout_weights are of; VESPO's w has each token's as a factor, or its sequence's once.
  ImportanceLevel rollout_level = ImportanceLevel::kToken;
  at::Tensor selected = {};  // bool; of kClipCov and kKlCov only
};

struct PolicyLoss {
  at::Tensor per_token;  // [N], with gradients; 0 for masked tokens
  at::Tensor ratio;      // [N], ρ or the sequence's, without gradients; 1 for masked tokens
  at::Tensor clipped;  // bool [N]. PPO clip, GSPO, sequence clip: the clipped term is the larger one, so that there is
                       // no gradient; clip-cov: so, or selected. CISPO: the weight is clipped, the gradient is not 0.
                       // GMPO: log ρ of the token is held. Others: none
  at::Tensor dual;     // bool [N]: held by dual_clip
};

// Throws for inputs that are missing, do not fit, or are not finite where the mask counts.
PolicyLoss ComputePolicyLoss(const ActorInputs& inputs, const Tokens& tokens, const ActorLossOptions& options);

struct ActorLoss {
  at::Tensor loss;  // a scalar, with gradients: the part's share, see aggregate.h
  PolicyLoss policy;
  at::Tensor kl;  // [N], 0 for masked tokens; undefined without ref_log_probs
};

// The aggregate of policy loss·rollout_weights + kl_coef·KL − entropy_coef·entropy. Masked tokens change neither the
// loss nor any gradient, whatever they hold.
ActorLoss ComputeActorLoss(const ActorInputs& inputs, const Tokens& tokens, const Counts& counts,
                           const ActorLossOptions& options);

}  // namespace tdock::algo
