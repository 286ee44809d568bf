#include "trainer/recipes/actor_section.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "core/config/nearest_values.h"
#include "model/files/config.h"

namespace tdock::trainer {
namespace {

using Kind = algo::PolicyLossKind;
using How = algo::Aggregation;
using Names = std::vector<std::pair<std::string, algo::KlEstimator>>;

const Names& KlNames() {
  static const Names* const kNames = new Names{{"k1", algo::KlEstimator::kK1},
                                               {"abs", algo::KlEstimator::kAbs},
                                               {"k2", algo::KlEstimator::kK2},
                                               {"k3", algo::KlEstimator::kK3},
                                               {"k3+", algo::KlEstimator::kK3Plus}};
  return *kNames;
}

bool IsExternal(const RunConfig& run, const char* stage) {
  return absl::c_linear_search(run.trainer.dock.external_stages, stage);
}

void BindBatches(config::Spec& spec, ActorSection& actor, const AlgorithmSection& algorithm, const RunConfig& run,
                 const RolloutSection& rollout) {
  spec.Int("actor.ppo_mini_batch_size", &actor.ppo_mini_batch_size,
           "Prompts per optimizer step, each with rollout.n samples; 0: the largest number from 16 to 32 that divides "
           "data.train_batch_size, or all of them if none does.")
      .AtLeast(0)
      .AtMost(kMaxBatch);
  BindPass(spec, "actor.ppo_micro_batch_size_per_gpu", "Samples in one forward and backward pass",
           "actor.ppo_max_token_len_per_gpu", actor.pass);
  spec.Int("actor.ppo_epochs", &actor.ppo_epochs, "How often each sample is trained on in its step.")
      .AtLeast(1)
      .AtMost(1000);
  spec.Float("actor.target_kl", &actor.target_kl,
             "Nothing more is trained on in a step once the mean of old minus new log-probabilities of a mini-batch is "
             "above this; 0: never.")
      .AtLeast(0);
  spec.Check({"actor.target_kl", "model.dropout", "model.lora_dropout"}, [&]() -> std::vector<std::string> {
    if (actor.target_kl == 0 || (run.model.dropout == 0 && run.model.lora_dropout == 0)) return {};
    return {"what is dropped moves the log-probabilities, which would be taken for a move of the policy; set one to 0"};
  });
  spec.Check({"actor.ppo_mini_batch_size", "data.train_batch_size"}, [&]() -> std::vector<std::string> {
    if (actor.ppo_mini_batch_size == 0 || run.data.train_batch_size % actor.ppo_mini_batch_size == 0) return {};
    const std::string nearest = config::NearestDivisors(actor.ppo_mini_batch_size, run.data.train_batch_size);
    return {absl::StrCat("the mini-batch must divide the batch; the nearest that does is ", nearest)};
  });
  spec.Check({"actor.ppo_micro_batch_size_per_gpu", "actor.ppo_mini_batch_size", "rollout.n"},
             [&]() -> std::vector<std::string> {
               const int64_t micro = actor.pass.micro_batch_size;
               const int64_t samples = MiniBatchSize(actor, algorithm, run) * rollout.n;
               if (micro == 0 || samples % micro == 0) return {};
               return {absl::StrCat("the micro-batch must divide the ", samples,
                                    " samples of a mini-batch; the nearest that does is ",
                                    config::NearestDivisors(micro, samples))};
             });
}

void BindPolicyLoss(config::Spec& spec, ActorSection& actor) {
  spec.Choice("actor.policy_loss.loss_mode", &actor.loss.kind,
              {{"vanilla", Kind::kPpoClip},
               {"gspo", Kind::kGspo},
               {"sequence_clip", Kind::kSequenceClip},
               {"cispo", Kind::kCispo},
               {"gpg", Kind::kGpg},
               {"clip_cov", Kind::kClipCov},
               {"kl_cov", Kind::kKlCov},
               {"geo_mean", Kind::kGmpo},
               {"sapo", Kind::kSapo},
               {"vespo", Kind::kVespo}},
              "The policy loss; vanilla is PPO's. docs/algorithms.md has the formulas.");
  spec.Float("actor.clip_ratio_low", &actor.loss.clip_low, "The ratio is clipped at 1 minus this.")
      .AtLeast(0)
      .AtMost(1);
  spec.Float("actor.clip_ratio_high", &actor.loss.clip_high, "The ratio is clipped at 1 plus this.").AtLeast(0);
  spec.Float("actor.clip_ratio_c", &actor.loss.dual_clip,
             "For negative advantages the loss is at most the advantage times this (dual clip), which must be above 1; "
             "0: not limited.")
      .AtLeast(0);
  spec.Float("actor.policy_loss.clip_cov_ratio", &actor.clip_cov.fraction,
             "Of clip_cov: the share of the tokens that are left out.")
      .MoreThan(0)
      .AtMost(1);
  spec.Float("actor.policy_loss.clip_cov_lb", &actor.clip_cov.low, "Of clip_cov: they have a covariance above this.");
  spec.Float("actor.policy_loss.clip_cov_ub", &actor.clip_cov.high, "Of clip_cov: and below this.");
  spec.Float("actor.policy_loss.kl_cov_ratio", &actor.kl_cov_fraction,
             "Of kl_cov: the share of the tokens, those with the largest covariance, that are pulled back.")
      .MoreThan(0)
      .AtMost(1);
  spec.Float("actor.policy_loss.ppo_kl_coef", &actor.loss.cov_kl_coef, "Of kl_cov: how strongly they are pulled.")
      .AtLeast(0);
  spec.Float("actor.tau_pos", &actor.loss.sapo_tau.positive, "Of sapo: the temperature for positive advantages.")
      .MoreThan(0);
  spec.Float("actor.tau_neg", &actor.loss.sapo_tau.negative, "Of sapo: the temperature for negative advantages.")
      .MoreThan(0);
  spec.Float("actor.policy_loss.vespo_k_pos", &actor.loss.vespo_k.positive, "Of vespo: k for positive advantages.");
  spec.Float("actor.policy_loss.vespo_k_neg", &actor.loss.vespo_k.negative, "Of vespo: k for negative advantages.");
  spec.Float("actor.policy_loss.vespo_lambda_pos", &actor.loss.vespo_lambda.positive,
             "Of vespo: λ for positive advantages.");
  spec.Float("actor.policy_loss.vespo_lambda_neg", &actor.loss.vespo_lambda.negative,
             "Of vespo: λ for negative advantages.");
  spec.Check({"actor.policy_loss.clip_cov_lb", "actor.policy_loss.clip_cov_ub"},
             [&actor]() -> std::vector<std::string> {
               if (actor.clip_cov.low < actor.clip_cov.high) return {};
               return {"no covariance is between them; the first must be below the second"};
             });
  const auto without = [&actor](std::set<Kind> kinds) {
    return [&actor, kinds = std::move(kinds)] { return kinds.contains(actor.loss.kind); };
  };
  spec.Unused({"actor.clip_ratio_low", "actor.clip_ratio_high"},
              without({Kind::kGpg, Kind::kKlCov, Kind::kSapo, Kind::kVespo}), "this policy loss clips no ratio");
  spec.Unused({"actor.clip_ratio_c"},
              without({Kind::kGpg, Kind::kKlCov, Kind::kSapo, Kind::kVespo, Kind::kCispo, Kind::kGmpo}),
              "this policy loss has no dual clip");
  const auto other_than = [&actor](Kind kind) { return [&actor, kind] { return actor.loss.kind != kind; }; };
  spec.Unused({"actor.policy_loss.clip_cov_ratio", "actor.policy_loss.clip_cov_lb", "actor.policy_loss.clip_cov_ub"},
              other_than(Kind::kClipCov), "only clip_cov has it");
  spec.Unused({"actor.policy_loss.kl_cov_ratio", "actor.policy_loss.ppo_kl_coef"}, other_than(Kind::kKlCov),
              "only kl_cov has it");
  spec.Unused({"actor.tau_pos", "actor.tau_neg"}, other_than(Kind::kSapo), "only sapo has it");
  spec.Unused({"actor.policy_loss.vespo_k_pos", "actor.policy_loss.vespo_k_neg", "actor.policy_loss.vespo_lambda_pos",
               "actor.policy_loss.vespo_lambda_neg"},
              other_than(Kind::kVespo), "only vespo has it");
}

void BindLoss(config::Spec& spec, ActorSection& actor) {
  BindPolicyLoss(spec, actor);
  spec.Choice("actor.loss_agg_mode", &actor.loss.reduction.how,
              {{"token-mean", How::kTokenMean},
               {"seq-mean-token-sum", How::kSeqMeanTokenSum},
               {"seq-mean-token-mean", How::kSeqMeanTokenMean},
               {"seq-mean-token-sum-norm", How::kSeqMeanTokenSumNorm}},
              "How the losses of tokens become one number: their mean; or the mean over samples of their sum, of their "
              "mean, or of their sum over actor.loss_scale_factor.");
  spec.Int("actor.loss_scale_factor", &actor.loss_scale_factor,
           "Of seq-mean-token-sum-norm: the constant length; 0: data.max_response_length.")
      .AtLeast(0);
  spec.Unused(
      {"actor.loss_scale_factor"}, [&] { return actor.loss.reduction.how != How::kSeqMeanTokenSumNorm; },
      "only seq-mean-token-sum-norm has it");
  spec.Float("actor.entropy_coeff", &actor.loss.entropy_coef,
             "Weight of the entropy of the policy, which is taken off the loss.")
      .AtLeast(0);
  spec.Float("actor.kl_loss_coef", &actor.loss.kl_coef,
             "Weight of the KL to the reference model in the loss; with 0, and without a KL in the reward, there is no "
             "reference model.")
      .AtLeast(0);
  spec.Choice("actor.kl_loss_type", &actor.loss.kl_type, KlNames(),
              "Estimator of the KL: −x, abs(x), x²/2, eˣ−x−1, or (k3+) the last with the gradient of x²/2, where x is "
              "the reference's log-probability minus the policy's.");
  // What the loss itself refuses, such as an aggregation that its kind does not take.
  spec.Check({"actor.policy_loss.loss_mode", "actor.loss_agg_mode", "actor.clip_ratio_c"},
             [&]() -> std::vector<std::string> {
               try {
                 algo::CheckActorLossOptions(actor.loss);
               } catch (const c10::Error& e) {
                 return {e.what_without_backtrace()};
               }
               return {};
             });
}

void BindPtx(config::Spec& spec, ActorSection& actor) {
  spec.Float("actor.ptx_coef", &actor.ptx_coef,
             "Weight of a cross-entropy of the answers in data.ptx_files, which keeps the model from forgetting them.")
      .AtLeast(0);
  spec.Int("actor.ptx_batch_size", &actor.ptx_batch_size, "How many of them there are in each optimizer step.")
      .AtLeast(1)
      .AtMost(kMaxBatch);
  spec.Strings("data.ptx_files", &actor.ptx_files,
               "Files of conversations, or of prompts with answers, in a form that is recognised by itself.");
  const auto none = [&actor] { return actor.ptx_coef == 0; };
  spec.Unused({"actor.ptx_batch_size", "data.ptx_files"}, none, "actor.ptx_coef is 0");
  spec.Check({"actor.ptx_coef", "data.ptx_files"}, [&actor]() -> std::vector<std::string> {
    if (actor.ptx_coef == 0 || !actor.ptx_files.empty()) return {};
    return {"there are no answers to learn: name the files"};
  });
}

// Of recipes with a critic.
void BindGae(config::Spec& spec, AlgorithmSection& algorithm) {
  spec.Choice("algorithm.adv_estimator", &algorithm.advantage.estimator, {{"gae", AdvantageEstimator::kGae}},
              "How rewards become advantages: generalized advantage estimation, with the values of the critic.");
  spec.Float("algorithm.gamma", &algorithm.advantage.gamma, "The discount from token to token.").AtLeast(0).AtMost(1);
  spec.Float("algorithm.lam", &algorithm.advantage.lambda,
             "How far advantages look ahead: 0 is one token, 1 the whole answer.")
      .AtLeast(0)
      .AtMost(1);
  spec.Bool("algorithm.norm_adv", &algorithm.advantage.whiten,
            "Advantages are whitened over the tokens of a step: less their mean, by their standard deviation.");
}

// Of recipes without.
void BindGroupAdvantage(config::Spec& spec, AlgorithmSection& algorithm) {
  using Estimator = AdvantageEstimator;
  spec.Choice("algorithm.adv_estimator", &algorithm.advantage.estimator,
              {{"grpo", Estimator::kGrpo},
               {"grpo_passk", Estimator::kPassAtK},
               {"rloo", Estimator::kRloo},
               {"opo", Estimator::kOpo},
               {"gpg", Estimator::kGpg},
               {"reinforce_plus_plus", Estimator::kReinforcePlusPlus},
               {"reinforce_plus_plus_baseline", Estimator::kReinforcePlusPlusBaseline},
               {"remax", Estimator::kRemax}},
              "How rewards become advantages. docs/algorithms.md has the formulas.");
  spec.Bool(
      "algorithm.norm_adv_by_std_in_grpo", &algorithm.advantage.divide_by_deviation,
      "Of grpo and grpo_passk: advantages are divided by the standard deviation of the group; false is Dr. GRPO.");
  spec.Float("algorithm.gamma", &algorithm.advantage.gamma, "Of reinforce_plus_plus: the discount from token to token.")
      .AtLeast(0)
      .AtMost(1);
  spec.Unused(
      {"algorithm.norm_adv_by_std_in_grpo"},
      [&] {
        const Estimator estimator = algorithm.advantage.estimator;
        return estimator != Estimator::kGrpo && estimator != Estimator::kPassAtK;
      },
      "only grpo and grpo_passk divide by it");
  spec.Unused(
      {"algorithm.gamma"}, [&] { return algorithm.advantage.estimator != Estimator::kReinforcePlusPlus; },
      "only reinforce_plus_plus discounts");
}

void BindAdvantage(config::Spec& spec, AlgorithmSection& algorithm) {
  if (algorithm.advantage.estimator == AdvantageEstimator::kGae) {
    BindGae(spec, algorithm);
  } else {
    BindGroupAdvantage(spec, algorithm);
  }
  spec.Float("algorithm.clip_score", &algorithm.clip_score,
             "The score of an answer counts as at most this, and at least minus this; 0: as it is.")
      .AtLeast(0);
  spec.Bool("algorithm.use_kl_in_reward", &algorithm.use_kl_in_reward,
            "Each token's reward is less by algorithm.kl_ctrl.kl_coef times the KL to the reference model.");
  spec.Choice("algorithm.kl_penalty", &algorithm.kl.estimator, KlNames(),
              "Estimator of that KL; see actor.kl_loss_type.");
  spec.Choice("algorithm.kl_ctrl.type", &algorithm.kl_control,
              {{"fixed", KlControl::kFixed}, {"adaptive", KlControl::kAdaptive}},
              "Whether its weight stays, or is changed after each step to reach algorithm.kl_ctrl.target_kl.");
  spec.Float("algorithm.kl_ctrl.kl_coef", &algorithm.kl.coef,
             "Its weight; 0: none; if adaptive, the weight of the first step.")
      .AtLeast(0);
  spec.Float("algorithm.kl_ctrl.target_kl", &algorithm.kl_target.kl, "The KL of a token that is steered to.")
      .MoreThan(0);
  spec.Float("algorithm.kl_ctrl.horizon", &algorithm.kl_target.horizon,
             "Samples after which an error of 20% has changed the weight by 20%.")
      .MoreThan(0);
  spec.Unused(
      {"algorithm.kl_penalty", "algorithm.kl_ctrl.type", "algorithm.kl_ctrl.kl_coef"},
      [&] { return !algorithm.use_kl_in_reward; }, "there is no KL in the reward");
  spec.Unused(
      {"algorithm.kl_ctrl.target_kl", "algorithm.kl_ctrl.horizon"},
      [&] { return !algorithm.use_kl_in_reward || algorithm.kl_control == KlControl::kFixed; },
      "the weight of the KL in the reward is not adaptive");
}

void BindOverlongBuffer(config::Spec& spec, AlgorithmSection& algorithm, const RunConfig& run,
                        const RolloutSection& rollout) {
  spec.Bool("reward.overlong_buffer.enable", &algorithm.overlong_buffer.enable,
            "Take reward off answers that are nearly too long, whoever scores them (DAPO, equation 13).");
  spec.Int("reward.overlong_buffer.len", &algorithm.overlong_buffer.len,
           "The last tokens of data.max_response_length: from none at their first to reward.overlong_buffer."
           "penalty_factor at their last, evenly.")
      .AtLeast(0)
      .AtMost(model::kMaxPositions);
  spec.Float("reward.overlong_buffer.penalty_factor", &algorithm.overlong_buffer.penalty_factor,
             "Penalty, taken off the reward, of an answer of data.max_response_length tokens; 0: none.")
      .AtLeast(0);
  spec.Unused(
      {"reward.overlong_buffer.len", "reward.overlong_buffer.penalty_factor"},
      [&algorithm] { return !algorithm.overlong_buffer.enable; },
      "there is no penalty (reward.overlong_buffer.enable)");
  spec.Check({"reward.overlong_buffer.len", "data.max_response_length"}, [&]() -> std::vector<std::string> {
    const int64_t len = algorithm.overlong_buffer.len;
    if (!algorithm.overlong_buffer.enable || (len > 0 && len < rollout.max_response_length)) return {};
    if (len == 0) return {"the tokens over which the penalty grows are not given: set reward.overlong_buffer.len"};
    return {absl::StrCat("the ", len, " tokens before a response is too long are not less than its ",
                         rollout.max_response_length)};
  });
  spec.Check({"reward.overlong_buffer.enable", "trainer.external_stages"}, [&]() -> std::vector<std::string> {
    if (!algorithm.overlong_buffer.enable || !IsExternal(run, "advantage")) return {};
    return {"the penalty is added by the stage advantage, which is left to another process: let that add it"};
  });
}

void BindRolloutCorrection(config::Spec& spec, AlgorithmSection& algorithm) {
  spec.Choice("algorithm.rollout_correction.bypass_mode", &algorithm.bypass_mode,
              {{"auto", BypassMode::kWhereEqual}, {"true", BypassMode::kAlways}, {"false", BypassMode::kNever}},
              "Take the log-probabilities of the rollout for those of the policy before the step, instead of computing "
              "them in a pass of their own. auto: where both are the same to the last bit, which is where "
              "model.batch_invariant holds, rollouts are not quantized and no servers answer. Where they are taken, "
              "rollout_corr/* is 0.");
  spec.Choice(
      "algorithm.rollout_correction.rollout_is", &algorithm.rollout_is,
      {{"none", RolloutWeights::kNone}, {"token", RolloutWeights::kToken}, {"sequence", RolloutWeights::kSequence}},
      "Whether the loss of a token is weighted by how likely training finds it, or its sample, against the "
      "rollout.");
  spec.Float("algorithm.rollout_correction.rollout_is_threshold", &algorithm.rollout_is_threshold,
             "Those weights are at most this.")
      .MoreThan(0);
  spec.Unused(
      {"algorithm.rollout_correction.rollout_is_threshold"},
      [&] { return algorithm.rollout_is == RolloutWeights::kNone; }, "there are no such weights");
  spec.Check({"algorithm.rollout_correction.bypass_mode", "algorithm.rollout_correction.rollout_is"},
             [&]() -> std::vector<std::string> {
               if (algorithm.bypass_mode != BypassMode::kAlways || algorithm.rollout_is == RolloutWeights::kNone)
                 return {};
               return {
                   "the weights would all be 1, because both policies are then the same: remove rollout_is, or set "
                   "bypass_mode to false"};
             });
}

}  // namespace

int64_t DefaultMiniBatch(int64_t prompts) {
  for (int64_t size = 32; size >= 16; --size) {
    if (prompts > 0 && prompts % size == 0) return size;
  }
  return std::max<int64_t>(prompts, 1);
}

int64_t MiniBatchSize(const ActorSection& actor, const AlgorithmSection& algorithm, const RunConfig& run) {
  if (actor.ppo_mini_batch_size > 0) return actor.ppo_mini_batch_size;
  return DefaultMiniBatch(run.data.train_batch_size / algorithm.generation_batches);
}

std::optional<algo::OverlongOptions> AlgorithmSection::overlong_options(const RolloutSection& rollout) const {
  if (!overlong_buffer.enable) return std::nullopt;
  return algo::OverlongOptions{.max_length = rollout.max_response_length,
                               .buffer = overlong_buffer.len,
                               .factor = overlong_buffer.penalty_factor};
}

AdvantageOptions AlgorithmSection::advantage_options(const RolloutSection& rollout) const {
  AdvantageOptions options = advantage;
  if (clip_score > 0) options.score_clip = clip_score;
  options.overlong = overlong_options(rollout);
  if (has_kl_in_reward()) options.kl = kl;
  if (use_kl_in_reward && kl_control == KlControl::kAdaptive) options.kl_target = kl_target;
  return options;
}

void BindActor(config::Spec& spec, ActorSection& actor, AlgorithmSection& algorithm, const RunConfig& run,
               const RolloutSection& rollout) {
  BindBatches(spec, actor, algorithm, run, rollout);
  BindLoss(spec, actor);
  spec.Unused(
      {"actor.kl_loss_type"}, [&actor] { return actor.loss.kl_coef == 0; }, "there is no KL in the loss");
  BindOptim(spec, "actor.optim", run, actor.optim);
  BindPtx(spec, actor);
  BindAdvantage(spec, algorithm);
  BindOverlongBuffer(spec, algorithm, run, rollout);
  BindRolloutCorrection(spec, algorithm);
  spec.Check({"algorithm.kl_ctrl.type", "algorithm.kl_ctrl.kl_coef"}, [&]() -> std::vector<std::string> {
    const bool adapts = algorithm.use_kl_in_reward && algorithm.kl_control == KlControl::kAdaptive;
    if (!adapts || algorithm.kl.coef > 0) return {};
    return {"an adaptive weight of 0 stays 0; it must be above 0"};
  });
  spec.Check({"algorithm.adv_estimator", "trainer.external_stages"}, [&]() -> std::vector<std::string> {
    if (!algorithm.needs_baseline() || !IsExternal(run, "reward")) return {};
    return {"remax also scores answers of its own, which are not among the rows that another process scores"};
  });
  spec.Check({"algorithm.adv_estimator", "rollout.n"}, [&]() -> std::vector<std::string> {
    if (algorithm.advantage.estimator != AdvantageEstimator::kPassAtK || rollout.n > 1) return {};
    return {"grpo_passk compares the best answer with the second best, so there must be at least 2"};
  });
  spec.Check({"algorithm.kl_ctrl.horizon", "data.train_batch_size", "rollout.n"}, [&]() -> std::vector<std::string> {
    const auto samples = static_cast<double>(run.data.train_batch_size * rollout.n);
    if (!algorithm.use_kl_in_reward || algorithm.kl_control == KlControl::kFixed) return {};
    if (algorithm.kl_target.horizon > samples / 5) return {};
    return {absl::StrCat("the horizon must be more than a fifth of a step's samples, above ", samples / 5)};
  });
}

ActorObjectiveOptions ObjectiveOptions(const ActorSection& actor, const AlgorithmSection& algorithm,
                                       const RolloutSection& rollout) {
  ActorObjectiveOptions options{
      .loss = actor.loss, .rollout_weights = {}, .clip_cov = actor.clip_cov, .kl_cov_fraction = actor.kl_cov_fraction};
  options.loss.reduction.norm =
      static_cast<double>(actor.loss_scale_factor > 0 ? actor.loss_scale_factor : rollout.max_response_length);
  if (algorithm.rollout_is != RolloutWeights::kNone) {
    options.rollout_weights = {.level = algorithm.rollout_is == RolloutWeights::kToken
                                            ? algo::ImportanceLevel::kToken
                                            : algo::ImportanceLevel::kSequence,
                               .cap = algorithm.rollout_is_threshold};
  }
  return options;
}

}  // namespace tdock::trainer
