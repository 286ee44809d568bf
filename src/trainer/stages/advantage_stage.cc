#include "trainer/stages/advantage_stage.h"

#include <ATen/ATen.h>

#include <cmath>
#include <span>
#include <utility>

#include "core/base/status.h"
#include "model/tensor_torch/convert.h"
#include "trainer/algo/advantage.h"
#include "trainer/stages/columns.h"

namespace tdock::trainer {
namespace {

ConsumerOptions AdvantageConsumer(const AdvantageOptions& options) {
  ConsumerOptions consumer{
      .name = "advantage", .reads = {kRewards, kResponseMask}, .writes = {kAdvantages}, .unit = Unit::kGroup};
  if (options.kl.has_value()) consumer.reads.insert(consumer.reads.end(), {kOldLogProbs, kRefLogProb});
  if (options.estimator == AdvantageEstimator::kGae) {
    consumer.reads.emplace_back(kValues);
    consumer.writes.emplace_back(kReturns);
  }
  if (options.estimator == AdvantageEstimator::kRemax) consumer.reads.emplace_back(kRewardBaselines);
  return consumer;
}

// True if samples get no advantage where the rewards of their group are equal.
bool ComparesInGroups(AdvantageEstimator estimator) {
  return estimator != AdvantageEstimator::kReinforcePlusPlus && estimator != AdvantageEstimator::kGae &&
         estimator != AdvantageEstimator::kRemax;
}

class AdvantageStage final : public Stage {
 public:
  explicit AdvantageStage(const AdvantageOptions& options)
      : options_(options), kl_(options.kl.value_or(algo::KlRewardOptions())), consumer_(AdvantageConsumer(options)) {}

  const ConsumerOptions& consumer() const override { return consumer_; }

  void Save(State& state) const override { state.SetNumber("kl_coef", kl_.coef); }
  absl::Status Load(const State& state) override {
    TDOCK_ASSIGN_OR_RETURN(kl_.coef, state.Number("kl_coef"));
    return absl::OkStatus();
  }

  Together together() const override {
    const bool of_step = options_.kl_target.has_value() || options_.whiten ||
                         options_.estimator == AdvantageEstimator::kReinforcePlusPlus ||
                         options_.estimator == AdvantageEstimator::kReinforcePlusPlusBaseline ||
                         options_.estimator == AdvantageEstimator::kGpg;
    // Sums over groups and sequences, whose order libtorch may choose by how many there are.
    return of_step ? Together::kResult : Together::kLastBits;
  }

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    TDOCK_ASSIGN_OR_RETURN(Samples samples, Read(rows));
    if (std::isfinite(options_.score_clip)) ReportClipped(samples.scores, context.metrics);
    if (options_.overlong.has_value()) PenaliseLength(*options_.overlong, samples, context.metrics);
    const at::Tensor rewards = TokenRewards(samples);
    const algo::TokenAdvantages result = Advantages(samples, rewards);
    const at::Tensor of_samples = rewards.defined() ? algo::SumBySequence(rewards, samples.tokens) : samples.scores;
    ReportAll(samples, of_samples, result, context.metrics);
    if (ComparesInGroups(options_.estimator)) ReportEqualGroups(of_samples, rows.groups(), context.metrics);
    if (options_.kl.has_value()) ReportAndAdaptKl(samples, context.metrics);

    StageOutput output;
    TDOCK_RETURN_IF_ERROR(
        output.columns.Add(kAdvantages, RaggedColumn(result.advantages.to(at::kFloat), samples.lengths)));
    if (options_.estimator == AdvantageEstimator::kGae) {
      TDOCK_RETURN_IF_ERROR(output.columns.Add(kReturns, RaggedColumn(result.returns.to(at::kFloat), samples.lengths)));
    }
    return output;
  }

 private:
  struct Samples {
    at::Tensor scores;  // [S]
    at::Tensor groups;  // int64 [S]
    algo::Tokens tokens;
    std::vector<int64_t> lengths;
    at::Tensor log_probs, ref_log_probs;  // [N], if there is a KL
    at::Tensor values;                    // [N], of kGae
    at::Tensor baselines;                 // [S], of kRemax
  };

  absl::StatusOr<Samples> Read(const Rows& rows) const {
    Samples samples;
    TDOCK_ASSIGN_OR_RETURN(const Column rewards, rows.ToColumn(kRewards));
    TDOCK_ASSIGN_OR_RETURN(samples.scores, ValuesOf(rewards));
    samples.scores = samples.scores.clamp(-options_.score_clip, options_.score_clip);
    samples.groups = at::tensor(std::vector<int64_t>(rows.groups().begin(), rows.groups().end()));
    TDOCK_ASSIGN_OR_RETURN(const Column mask, rows.ToColumn(kResponseMask));
    for (size_t i = 0; i < rows.size(); ++i) samples.lengths.push_back(mask.Length(static_cast<int64_t>(i)));
    TDOCK_ASSIGN_OR_RETURN(const at::Tensor counted, ValuesOf(mask));
    samples.tokens = algo::MakeTokens(counted, samples.lengths);
    if (options_.estimator == AdvantageEstimator::kGae) {
      TDOCK_ASSIGN_OR_RETURN(const Column values, rows.ToColumn(kValues));
      TDOCK_ASSIGN_OR_RETURN(samples.values, ValuesOf(values));
    }
    if (options_.estimator == AdvantageEstimator::kRemax) {
      TDOCK_ASSIGN_OR_RETURN(const Column baselines, rows.ToColumn(kRewardBaselines));
      TDOCK_ASSIGN_OR_RETURN(samples.baselines, ValuesOf(baselines));
    }
    if (!options_.kl.has_value()) return samples;
    for (const auto& [name, target] :
         {std::pair(kOldLogProbs, &samples.log_probs), std::pair(kRefLogProb, &samples.ref_log_probs)}) {
      TDOCK_ASSIGN_OR_RETURN(const Column column, rows.ToColumn(name));
      TDOCK_ASSIGN_OR_RETURN(*target, ValuesOf(column));
    }
    return samples;
  }

  static void PenaliseLength(const algo::OverlongOptions& options, Samples& samples, StepMetrics& metrics) {
    std::vector<double> penalties;
    for (const int64_t length : samples.lengths) {
      penalties.push_back(algo::OverlongPenalty(length, options));
      metrics.Mean("overlong/penalty", penalties.back());
      metrics.Mean("overlong/ratio", penalties.back() < 0 ? 1 : 0);
    }
    samples.scores = (samples.scores.to(at::kDouble) + at::tensor(penalties)).to(samples.scores.scalar_type());
  }

  // Undefined where only the sum of a sample matters and that is its score: a sample without tokens that count is no
  // error then.
  at::Tensor TokenRewards(const Samples& samples) const {
    const bool of_tokens = options_.estimator == AdvantageEstimator::kReinforcePlusPlus ||
                           options_.estimator == AdvantageEstimator::kGae ||
                           options_.estimator == AdvantageEstimator::kRemax;
    if (!options_.kl.has_value() && !of_tokens) return {};
    return algo::TokenRewards(samples.scores, samples.log_probs, samples.ref_log_probs, samples.tokens, kl_);
  }

  algo::TokenAdvantages Advantages(const Samples& samples, const at::Tensor& token_rewards) const {
    if (options_.estimator == AdvantageEstimator::kReinforcePlusPlus) {
      return algo::ReinforcePlusPlusAdvantages(token_rewards, samples.tokens, options_.gamma);
    }
    if (options_.estimator == AdvantageEstimator::kGae) {
      return algo::GaeAdvantages(token_rewards, samples.values, samples.tokens,
                                 {.gamma = options_.gamma, .lambda = options_.lambda, .whiten = options_.whiten});
    }
    if (options_.estimator == AdvantageEstimator::kRemax) {
      return algo::RemaxAdvantages(token_rewards, samples.baselines, samples.tokens);
    }
    const at::Tensor advantages = OfSamples(
        token_rewards.defined() ? algo::SumBySequence(token_rewards, samples.tokens) : samples.scores, samples);
    return {advantages, advantages};
  }

  // [N]
  at::Tensor OfSamples(const at::Tensor& rewards, const Samples& samples) const {
    const auto spread = [&](const at::Tensor& per_sample) {
      return algo::Unmasked(algo::Spread(per_sample, samples.tokens), samples.tokens.mask);
    };
    const algo::GrpoOptions by_deviation{.divide_by_deviation = options_.divide_by_deviation};
    switch (options_.estimator) {
      case AdvantageEstimator::kGrpo:
        return spread(algo::GrpoAdvantages(rewards, samples.groups, by_deviation));
      case AdvantageEstimator::kPassAtK:
        return spread(algo::PassAtKAdvantages(rewards, samples.groups, by_deviation));
      case AdvantageEstimator::kRloo:
        return spread(algo::RlooAdvantages(rewards, samples.groups));
      case AdvantageEstimator::kOpo:
        return spread(algo::OpoAdvantages(rewards, samples.groups, algo::CountBySequence(samples.tokens)));
      case AdvantageEstimator::kGpg:
        return spread(algo::GpgAdvantages(rewards, samples.groups));
      case AdvantageEstimator::kReinforcePlusPlusBaseline:
        return algo::ReinforcePlusPlusBaselineAdvantages(rewards, samples.groups, samples.tokens);
      case AdvantageEstimator::kReinforcePlusPlus:
      case AdvantageEstimator::kGae:
      case AdvantageEstimator::kRemax:
        break;
    }
    TORCH_CHECK(false, "the estimator ", static_cast<int>(options_.estimator), " is not one of samples");
  }

  void ReportClipped(const at::Tensor& scores, StepMetrics& metrics) const {
    const at::Tensor clipped = (scores.abs() >= options_.score_clip).to(at::kDouble);
    metrics.Mean("critic/score/clip_ratio", clipped.mean().item<double>(), static_cast<double>(clipped.numel()));
  }

  // The rewards are those that are compared; the samples of a group are adjacent. One alone is compared with nothing.
  static void ReportEqualGroups(const at::Tensor& rewards, std::span<const GroupId> groups, StepMetrics& metrics) {
    const at::Tensor values = rewards.to(at::kDouble).contiguous();
    const std::span<const double> reward(values.const_data_ptr<double>(), groups.size());
    for (size_t begin = 0, end = 0; begin < groups.size(); begin = end) {
      bool equal = true;
      for (end = begin; end < groups.size() && groups[end] == groups[begin]; ++end) {
        equal = equal && reward[end] == reward[begin];
      }
      metrics.Mean("critic/rewards/equal_share", equal && end - begin > 1 ? 1 : 0);
    }
  }

  static void ReportAll(const Samples& samples, const at::Tensor& rewards, const algo::TokenAdvantages& result,
                        StepMetrics& metrics) {
    const auto report = [&](const char* name, const at::Tensor& values) {
      const at::Tensor floats = values.to(at::kFloat).contiguous();
      metrics.Distribution(name, {floats.const_data_ptr<float>(), static_cast<size_t>(floats.numel())});
    };
    const at::Tensor counts = samples.tokens.mask != 0;
    report("critic/rewards", rewards);
    report("critic/advantages", result.advantages.masked_select(counts));
    report("critic/returns", result.returns.masked_select(counts));
  }

  void ReportAndAdaptKl(const Samples& samples, StepMetrics& metrics) {
    const at::Tensor per_token = algo::KlDivergence(samples.log_probs, samples.ref_log_probs, kl_.estimator);
    const double kl = algo::MeanBySequence(per_token, samples.tokens).mean().item<double>();
    metrics.Mean("actor/reward_kl_penalty", kl);
    metrics.Mean("actor/reward_kl_penalty_coeff", kl_.coef);
    if (!options_.kl_target.has_value()) return;
    kl_.coef = algo::AdaptedKlCoef(kl_.coef, kl, static_cast<double>(samples.lengths.size()), *options_.kl_target);
  }

  const AdvantageOptions options_;
  algo::KlRewardOptions kl_;  // its coefficient as it is now
  const ConsumerOptions consumer_;
};

}  // namespace

std::unique_ptr<Stage> MakeAdvantageStage(const AdvantageOptions& options) {
  return std::make_unique<AdvantageStage>(options);
}

}  // namespace tdock::trainer
