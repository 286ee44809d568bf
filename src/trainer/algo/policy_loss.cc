#include "trainer/algo/policy_loss.h"

#include <ATen/ATen.h>

namespace tdock::algo {
namespace {

constexpr double kLargestLogRatio = 20.0;

at::Tensor Ratio(const at::Tensor& log_ratio) { return log_ratio.clamp(-kLargestLogRatio, kLargestLogRatio).exp(); }

at::Tensor OneWhereMasked(const at::Tensor& ratio, const Tokens& tokens) {
  return ratio.masked_fill(tokens.mask == 0, 1.0);
}

// What is clipped by the ratio.
PolicyLoss Clipped(const at::Tensor& ratio, const at::Tensor& advantages, const ActorLossOptions& options) {
  const at::Tensor free = -advantages * ratio;
  const at::Tensor held = -advantages * ratio.clamp(1.0 - options.clip_low, 1.0 + options.clip_high);
  PolicyLoss loss{at::maximum(free, held), ratio.detach(), (held > free).detach(), {}};
  if (options.dual_clip == 0) {
    loss.dual = at::zeros_like(loss.clipped);
    return loss;
  }
  const at::Tensor most = -advantages * options.dual_clip;
  loss.dual = (advantages < 0).logical_and(loss.per_token > most).detach();
  loss.per_token = at::where(loss.dual, most, loss.per_token);
  return loss;
}

PolicyLoss Cispo(const at::Tensor& log_probs, const at::Tensor& ratio, const at::Tensor& advantages,
                 const ActorLossOptions& options) {
  const at::Tensor fixed = ratio.detach();
  const at::Tensor weight = fixed.clamp(1.0 - options.clip_low, 1.0 + options.clip_high);
  return {-weight * advantages * log_probs, fixed, weight != fixed, at::zeros_like(fixed, at::kBool)};
}

PolicyLoss Gmpo(const at::Tensor& log_ratio, const at::Tensor& advantages, const Tokens& tokens,
                const ActorLossOptions& options) {
  const at::Tensor sign = advantages.sign();
  const at::Tensor held = log_ratio.clamp(-options.clip_low, options.clip_high);
  const at::Tensor least = sign * at::minimum(sign * log_ratio, sign * held);
  const at::Tensor ratio = Ratio(MeanBySequence(least, tokens));
  const at::Tensor loss = -MeanBySequence(advantages, tokens) * ratio;
  return {Unmasked(Spread(loss, tokens), tokens.mask), OneWhereMasked(Spread(ratio, tokens).detach(), tokens),
          (sign * held < sign * log_ratio).detach(), at::zeros_like(advantages, at::kBool)};
}

// (The loss of an advantage of 0 is 0 either way.)
at::Tensor Chosen(const at::Tensor& advantages, const BySign& by_sign) {
  return at::full_like(advantages, by_sign.negative).masked_fill(advantages > 0, by_sign.positive);
}

PolicyLoss Sapo(const at::Tensor& ratio, const at::Tensor& advantages, const ActorLossOptions& options) {
  const at::Tensor tau = Chosen(advantages, options.sapo_tau), none = at::zeros_like(ratio, at::kBool);
  return {-advantages * (tau * (ratio - 1)).sigmoid() * 4 / tau, ratio.detach(), none, none};
}

PolicyLoss Vespo(const ActorInputs& inputs, const at::Tensor& log_probs, const at::Tensor& log_ratio,
                 const at::Tensor& advantages, const Tokens& tokens, const ActorLossOptions& options) {
  constexpr double kLeast = -18.420680743952367;  // log 1e-8
  at::Tensor log_w = SumBySequence(log_ratio.detach().clamp(-kLargestLogRatio, kLargestLogRatio), tokens);
  if (inputs.rollout_weights.defined()) {
    CheckTokens("rollout weights", inputs.rollout_weights, tokens);
    const at::Tensor log_weights = inputs.rollout_weights.detach().log().clamp(kLeast, kLargestLogRatio);
    // Every token of a sequence has its sequence's weight, which is one factor and not |s|.
    log_w = log_w + (inputs.rollout_level == ImportanceLevel::kSequence ? MeanBySequence(log_weights, tokens)
                                                                        : SumBySequence(log_weights, tokens));
  }
  log_w = Spread(log_w.clamp(kLeast, kLargestLogRatio), tokens);
  const at::Tensor k = Chosen(advantages, options.vespo_k), lambda = Chosen(advantages, options.vespo_lambda);
  const at::Tensor weight = (lambda + k * log_w - lambda * log_w.exp()).exp();
  const at::Tensor none = at::zeros_like(log_probs, at::kBool);
  return {-weight * advantages * log_probs, OneWhereMasked(log_w.exp(), tokens), none, none};
}

// GMPO's weight of a sequence is the geometric mean of those of its tokens, as its ratio is.
at::Tensor WeightsOf(const at::Tensor& weights, const Tokens& tokens, PolicyLossKind kind) {
  const at::Tensor constant = Unmasked(weights.detach(), tokens.mask);
  if (kind != PolicyLossKind::kGmpo) return constant;
  return Spread(MeanBySequence(constant.masked_fill(tokens.mask == 0, 1.0).log(), tokens).exp(), tokens);
}

}  // namespace

void CheckActorLossOptions(const ActorLossOptions& options) {
  TORCH_CHECK(options.clip_low >= 0 && options.clip_high >= 0,
              "a ratio is clipped at a distance of 0 or more from 1: ", options.clip_low, " below and ",
              options.clip_high, " above are not");
  TORCH_CHECK(options.dual_clip == 0 || options.dual_clip > 1, "dual_clip must be above 1, or 0 for none, not ",
              options.dual_clip);
  TORCH_CHECK(options.sapo_tau.positive > 0 && options.sapo_tau.negative > 0,
              "SAPO's temperatures must be positive, not ", options.sapo_tau.positive, " and ",
              options.sapo_tau.negative);
  const Aggregation how = options.reduction.how;
  const bool lengthwise = options.kind == PolicyLossKind::kGspo && how == Aggregation::kSeqMeanTokenSum;
  const bool of_sequences = options.kind == PolicyLossKind::kGspo || options.kind == PolicyLossKind::kSequenceClip ||
                            options.kind == PolicyLossKind::kGmpo;
  TORCH_CHECK(!of_sequences || how == Aggregation::kSeqMeanTokenMean || lengthwise,
              "a loss of whole sequences (GSPO, sequence clip, GMPO) is aggregated by seq-mean-token-mean only, GSPO's "
              "also by seq-mean-token-sum");
}

PolicyLoss ComputePolicyLoss(const ActorInputs& inputs, const Tokens& tokens, const ActorLossOptions& options) {
  CheckActorLossOptions(options);
  CheckTokens("log-probabilities", inputs.log_probs, tokens);
  CheckTokens("advantages", inputs.advantages, tokens);
  const at::Tensor own = Unmasked(inputs.log_probs, tokens.mask);
  const at::Tensor advantages = Unmasked(inputs.advantages.detach(), tokens.mask);
  if (options.kind == PolicyLossKind::kGpg) {
    const at::Tensor none = at::zeros_like(own, at::kBool);
    return {-advantages * own, at::ones_like(own).detach(), none, none};
  }
  CheckTokens("old log-probabilities", inputs.old_log_probs, tokens);
  const at::Tensor log_ratio = own - Unmasked(inputs.old_log_probs.detach(), tokens.mask);
  switch (options.kind) {
    case PolicyLossKind::kPpoClip:
      return Clipped(Ratio(log_ratio), advantages, options);
    case PolicyLossKind::kGspo: {
      const at::Tensor mean = Spread(MeanBySequence(log_ratio.detach(), tokens), tokens);
      return Clipped(Ratio(Unmasked(mean, tokens.mask) + (own - own.detach())), advantages, options);
    }
    case PolicyLossKind::kSequenceClip:
      return Clipped(Ratio(Unmasked(Spread(SumBySequence(log_ratio, tokens), tokens), tokens.mask)), advantages,
                     options);
    case PolicyLossKind::kCispo:
      return Cispo(own, Ratio(log_ratio), advantages, options);
    case PolicyLossKind::kGmpo:
      return Gmpo(log_ratio, advantages, tokens, options);
    case PolicyLossKind::kSapo:
      return Sapo(Ratio(log_ratio), advantages, options);
    case PolicyLossKind::kVespo:
      return Vespo(inputs, own, log_ratio, advantages, tokens, options);
    case PolicyLossKind::kClipCov:
    case PolicyLossKind::kKlCov:
    case PolicyLossKind::kGpg:
      break;
  }
  TORCH_CHECK(
      inputs.selected.defined() && inputs.selected.scalar_type() == at::kBool && inputs.selected.sizes() == own.sizes(),
      "clip-cov and kl-cov need the selected tokens, bool ", own.sizes());
  if (options.kind == PolicyLossKind::kClipCov) {
    PolicyLoss loss = Clipped(Ratio(log_ratio), advantages, options);
    loss.per_token = loss.per_token.masked_fill(inputs.selected, 0.0);
    loss.clipped = loss.clipped.logical_or(inputs.selected);
    return loss;
  }
  TORCH_CHECK(options.kind == PolicyLossKind::kKlCov, "unknown policy loss ", static_cast<int>(options.kind));
  const at::Tensor ratio = Ratio(log_ratio), none = at::zeros_like(inputs.selected);
  const at::Tensor penalty = options.cov_kl_coef * log_ratio.abs();
  return {-advantages * ratio + penalty.masked_fill(inputs.selected.logical_not(), 0.0), ratio.detach(), none, none};
}

ActorLoss ComputeActorLoss(const ActorInputs& inputs, const Tokens& tokens, const Counts& counts,
                           const ActorLossOptions& options) {
  ActorLoss result{.loss = {}, .policy = ComputePolicyLoss(inputs, tokens, options), .kl = {}};
  at::Tensor total = result.policy.per_token;
  if (inputs.rollout_weights.defined() && options.kind != PolicyLossKind::kVespo) {
    CheckTokens("rollout weights", inputs.rollout_weights, tokens);
    total = total * WeightsOf(inputs.rollout_weights, tokens, options.kind);
  }
  if (options.kl_coef != 0 || inputs.ref_log_probs.defined()) {
    CheckTokens("log-probabilities of the reference", inputs.ref_log_probs, tokens);
    const at::Tensor own = Unmasked(inputs.log_probs, tokens.mask);
    result.kl = KlDivergence(options.kl_coef != 0 ? own : own.detach(),
                             Unmasked(inputs.ref_log_probs.detach(), tokens.mask), options.kl_type);
    if (options.kl_coef != 0) total = total + options.kl_coef * result.kl;
  }
  if (options.entropy_coef != 0) {
    CheckTokens("entropies", inputs.entropy, tokens);
    TORCH_CHECK(inputs.entropy.requires_grad() || !inputs.log_probs.requires_grad(),
                "entropies have no gradient, so that an entropy_coef of ", options.entropy_coef,
                " would change nothing: compute them with one, as the log-probabilities were");
    total = total - options.entropy_coef * Unmasked(inputs.entropy, tokens.mask);
  }
  result.loss = Aggregate(total, tokens, counts, options.reduction);
  return result;
}

}  // namespace tdock::algo
