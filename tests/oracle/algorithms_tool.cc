// For the oracle tests: what our losses and advantages give.
//
// tdock_algorithms: each line of its input is a call as JSON,
//
//   {"call": "actor", "lengths": [2, 1], "mask": [1, 1, 1], "tensors": {"log_probs": [-1, -2, -3], …},
//    "options": {"kind": "gspo", …}}
//
// and each line of its output the result: {"loss": …, "gradients": {"log_probs": […]}}, or the numbers that the call
// gives, or {"error": …}. All is float64. Of "dpo" and "bradley_terry", the first half of the sequences are chosen
// answers and the second half the rejected ones.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/algo/advantage.h"
#include "trainer/algo/covariance.h"
#include "trainer/algo/importance.h"
#include "trainer/algo/lr_schedule.h"
#include "trainer/algo/policy_loss.h"
#include "trainer/algo/preference.h"
#include "trainer/algo/value_loss.h"

namespace tdock::algo {
namespace {

using Json = nlohmann::json;

const std::map<std::string, PolicyLossKind> kPolicyLosses = {
    {"ppo", PolicyLossKind::kPpoClip},  {"gspo", PolicyLossKind::kGspo}, {"sequence", PolicyLossKind::kSequenceClip},
    {"cispo", PolicyLossKind::kCispo},  {"gpg", PolicyLossKind::kGpg},   {"clip_cov", PolicyLossKind::kClipCov},
    {"kl_cov", PolicyLossKind::kKlCov}, {"gmpo", PolicyLossKind::kGmpo}, {"sapo", PolicyLossKind::kSapo},
    {"vespo", PolicyLossKind::kVespo}};
const std::map<std::string, Aggregation> kAggregationNames = {
    {"token-mean", Aggregation::kTokenMean},
    {"seq-mean-token-sum", Aggregation::kSeqMeanTokenSum},
    {"seq-mean-token-mean", Aggregation::kSeqMeanTokenMean},
    {"seq-mean-token-sum-norm", Aggregation::kSeqMeanTokenSumNorm}};
const std::map<std::string, KlEstimator> kEstimators = {{"k1", KlEstimator::kK1},
                                                        {"abs", KlEstimator::kAbs},
                                                        {"k2", KlEstimator::kK2},
                                                        {"k3", KlEstimator::kK3},
                                                        {"k3+", KlEstimator::kK3Plus}};
const std::map<std::string, LrDecay> kDecays = {{"constant", LrDecay::kConstant},
                                                {"linear", LrDecay::kLinear},
                                                {"cosine", LrDecay::kCosine},
                                                {"cosine_with_restarts", LrDecay::kCosineWithRestarts},
                                                {"cosine_warmup_with_min_lr", LrDecay::kCosineOneAhead},
                                                {"polynomial", LrDecay::kPolynomial},
                                                {"inverse_sqrt", LrDecay::kInverseSqrt},
                                                {"warmup_stable_decay", LrDecay::kWarmupStableDecay}};
const std::map<std::string, LrCurve> kCurves = {
    {"linear", LrCurve::kLinear}, {"cosine", LrCurve::kCosine}, {"1-sqrt", LrCurve::kOneMinusSqrt}};
const std::map<std::string, DpoKind> kDpoKinds = {
    {"sigmoid", DpoKind::kSigmoid}, {"robust", DpoKind::kRobust}, {"ipo", DpoKind::kIpo}};

Json Listed(const at::Tensor& x) {
  const at::Tensor dense = x.detach().to(at::kDouble).contiguous();
  return std::vector<double>(dense.const_data_ptr<double>(), dense.const_data_ptr<double>() + dense.numel());
}

class Call {
 public:
  explicit Call(const Json& asked) : options_(asked.at("options")) {
    const auto lengths = asked.at("lengths").get<std::vector<int64_t>>();
    tokens_ = MakeTokens(at::tensor(asked.at("mask").get<std::vector<double>>()), lengths);
    counts_ = CountsOf(tokens_);
    for (const auto& [name, values] : asked.at("tensors").items()) {
      tensors_[name] = at::tensor(values.get<std::vector<double>>(), at::kDouble);
    }
  }

  Json Actor() const {
    const at::Tensor log_probs = Leaf("log_probs"), entropy = Leaf("entropy"), selected = Tensor("selected");
    const ActorLossOptions options{.clip_low = Number("clip_low", 0.2),
                                   .clip_high = Number("clip_high", 0.2),
                                   .dual_clip = Number("dual_clip", 0),
                                   .kl_coef = Number("kl_coef", 0),
                                   .kl_type = kEstimators.at(options_.value("kl_type", "k3")),
                                   .entropy_coef = Number("entropy_coef", 0),
                                   .kind = kPolicyLosses.at(options_.at("kind")),
                                   .reduction = ReductionAsked()};
    const ActorInputs inputs{.log_probs = log_probs,
                             .old_log_probs = Tensor("old_log_probs"),
                             .advantages = Tensor("advantages"),
                             .ref_log_probs = Tensor("ref_log_probs"),
                             .entropy = entropy,
                             .rollout_weights = Tensor("rollout_weights"),
                             .selected = selected.defined() ? selected != 0 : selected};
    return WithGradients(ComputeActorLoss(inputs, tokens_, counts_, options).loss,
                         {{"log_probs", log_probs}, {"entropy", entropy}});
  }

  Json Value() const {
    const at::Tensor values = Leaf("values");
    const ValueLossOptions options{.clip = Number("clip", 0.2), .reduction = ReductionAsked()};
    return WithGradients(
        ComputeValueLoss(values, Tensor("old_values"), Tensor("returns"), tokens_, counts_, options).loss,
        {{"values", values}});
  }

  Json Dpo() const {
    const at::Tensor log_probs = Leaf("log_probs");
    const DpoOptions options{Number("beta", 0.1), Number("label_smoothing", 0), kDpoKinds.at(options_.at("kind"))};
    const auto of_sequences = [&](const at::Tensor& x) {
      return (options.kind == DpoKind::kIpo ? MeanBySequence(x, tokens_) : SumBySequence(x, tokens_)).chunk(2);
    };
    const auto own = of_sequences(log_probs), ref = of_sequences(Tensor("ref_log_probs"));
    const DpoLoss loss = ComputeDpoLoss({own[0], own[1], ref[0], ref[1]}, options);
    return WithGradients(PairMean(loss.per_pair, static_cast<double>(own[0].numel())), {{"log_probs", log_probs}});
  }

  Json BradleyTerry() const {
    const at::Tensor values = Leaf("values");
    const auto scores =
        (options_.value("mean", false) ? MeanBySequence(values, tokens_) : LastTokenScores(values, tokens_)).chunk(2);
    const at::Tensor loss = BradleyTerryLoss(scores[0], scores[1], Tensor("margins"), {Number("centre_coef", 0)});
    return WithGradients(PairMean(loss, static_cast<double>(loss.numel())), {{"values", values}});
  }

  Json Advantage() const {
    const std::string kind = options_.at("kind");
    const at::Tensor rewards = Tensor("rewards"), token_rewards = Tensor("token_rewards");
    const double gamma = Number("gamma", 1);
    if (kind == "gae") {
      return Both(
          GaeAdvantages(token_rewards, Tensor("values"), tokens_, {gamma, Number("lambda", 0.95), /*whiten=*/true}));
    }
    if (kind == "reinforce_plus_plus") return Both(ReinforcePlusPlusAdvantages(token_rewards, tokens_, gamma));
    if (kind == "remax") return Both(RemaxAdvantages(token_rewards, Tensor("baselines"), tokens_));
    const at::Tensor groups = Tensor("groups").to(at::kLong);
    const GrpoOptions options{.divide_by_deviation = options_.value("divide", true),
                              .epsilon = Number("epsilon", 1e-6)};
    const std::map<std::string, std::function<at::Tensor()>> of_groups = {
        {"grpo", [&] { return GrpoAdvantages(rewards, groups, options); }},
        {"grpo_passk", [&] { return PassAtKAdvantages(rewards, groups, options); }},
        {"rloo", [&] { return RlooAdvantages(rewards, groups); }},
        {"opo", [&] { return OpoAdvantages(rewards, groups, CountBySequence(tokens_)); }},
        {"gpg", [&] { return GpgAdvantages(rewards, groups, GpgScale::kRewardsNotZero); }},
        {"reinforce_plus_plus_baseline",
         [&] { return ReinforcePlusPlusBaselineAdvantages(rewards, groups, tokens_); }}};
    return {{"advantages", Listed(of_groups.at(kind)())}};
  }

  Json Weights() const {
    const ImportanceOptions options{
        options_.at("level") == "token" ? ImportanceLevel::kToken : ImportanceLevel::kSequence, Number("cap", 2)};
    return {{"weights", Listed(RolloutWeights(Tensor("training"), Tensor("rollout"), tokens_, options).weights)}};
  }

  // The factors of the first `steps` steps.
  Json Schedule() const {
    const LrSchedule schedule{.decay = kDecays.at(options_.at("kind")),
                              .warmup_steps = options_.at("warmup"),
                              .total_steps = options_.at("total"),
                              .floor = Number("floor", 0),
                              .cycles = Number("cycles", 0.5),
                              .power = Number("power", 1),
                              .timescale = options_.value("timescale", int64_t{0}),
                              .decay_steps = options_.value("decay_steps", int64_t{0}),
                              .warmup_curve = kCurves.at(options_.value("warmup_curve", "linear")),
                              .decay_curve = kCurves.at(options_.value("decay_curve", "cosine")),
                              .warmup_start = Number("warmup_start", 0)};
    Json factors = Json::array();
    for (int64_t step = 0; step < options_.at("steps").get<int64_t>(); ++step) factors.push_back(schedule.Factor(step));
    return {{"factors", factors}};
  }

  Json Covariance() const {
    return {{"selected",
             Listed(LargestCovariance(Tensor("log_probs"), Tensor("advantages"), tokens_, Number("fraction", 0)))}};
  }

 private:
  at::Tensor Tensor(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? at::Tensor() : found->second;
  }
  at::Tensor Leaf(const std::string& name) const {
    at::Tensor x = Tensor(name);
    return x.defined() ? x.set_requires_grad(true) : x;
  }
  double Number(const char* name, double otherwise) const { return options_.value(name, otherwise); }
  Reduction ReductionAsked() const { return {kAggregationNames.at(options_.at("aggregation")), Number("norm", 0)}; }

  static Json Both(const TokenAdvantages& result) {
    return {{"advantages", Listed(result.advantages)}, {"returns", Listed(result.returns)}};
  }
  static Json WithGradients(const at::Tensor& loss, const std::map<std::string, at::Tensor>& inputs) {
    Json gradients = Json::object();
    for (const auto& [name, input] : inputs) {
      if (!input.defined()) continue;
      const at::Tensor gradient = torch::autograd::grad({loss}, {input}, {}, /*retain_graph=*/true,
                                                        /*create_graph=*/false, /*allow_unused=*/true)[0];
      if (gradient.defined()) gradients[name] = Listed(gradient);
    }
    return {{"loss", loss.item<double>()}, {"gradients", gradients}};
  }

  const Json options_;
  Tokens tokens_;
  Counts counts_;
  std::map<std::string, at::Tensor> tensors_;
};

int Main() {
  const std::map<std::string, Json (Call::*)() const> calls = {
      {"actor", &Call::Actor},           {"value", &Call::Value},         {"dpo", &Call::Dpo},
      {"weights", &Call::Weights},       {"advantage", &Call::Advantage}, {"bradley_terry", &Call::BradleyTerry},
      {"covariance", &Call::Covariance}, {"schedule", &Call::Schedule}};
  for (std::string line; std::getline(std::cin, line);) {
    Json answer;
    try {
      const Json asked = Json::parse(line);
      answer = (Call(asked).*calls.at(asked.at("call")))();
    } catch (const c10::Error& e) {
      answer = {{"error", e.what_without_backtrace()}};
    }
    if (!(std::cout << answer.dump() << std::endl)) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace tdock::algo

int main() { return tdock::algo::Main(); }
