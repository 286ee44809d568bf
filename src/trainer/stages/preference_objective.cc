#include "trainer/stages/preference_objective.h"

#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

#include "trainer/algo/reward_pairs.h"
#include "trainer/stages/columns.h"

namespace tdock::trainer {
namespace {

// The first and second of each pair.
std::pair<at::Tensor, at::Tensor> InPairs(const at::Tensor& per_sequence) {
  const at::Tensor pairs = per_sequence.view({-1, 2});
  return {pairs.select(1, 0), pairs.select(1, 1)};
}

void ReportMean(const std::string& name, const at::Tensor& per_pair, StepMetrics& metrics) {
  metrics.Mean(name, per_pair.mean().item<double>(), static_cast<double>(per_pair.numel()));
}

class PairObjective : public Objective {
 public:
  int64_t samples_together() const final { return 2; }

 protected:
  // Of the whole mini-batch.
  static double PairsOf(const TokenBatch& batch) { return batch.counts.sequences / 2; }
};

class DpoObjective final : public PairObjective {
 public:
  explicit DpoObjective(const DpoObjectiveOptions& options) : options_(options) {}

  std::vector<std::string> columns() const override { return {kRefLogProb}; }

  at::Tensor Loss(const TokenBatch& batch, StepMetrics& metrics) const override {
    const auto of_answers = [&](const at::Tensor& log_probs) {
      return options_.average ? algo::MeanBySequence(log_probs, batch.tokens)
                              : algo::SumBySequence(log_probs, batch.tokens);
    };
    const at::Tensor ref_log_probs = batch.columns.at(kRefLogProb).values.to(batch.log_probs.scalar_type());
    const auto [chosen, rejected] = InPairs(of_answers(batch.log_probs));
    const auto [ref_chosen, ref_rejected] = InPairs(of_answers(ref_log_probs));
    const algo::DpoLoss loss = algo::ComputeDpoLoss(
        {.chosen = chosen, .rejected = rejected, .ref_chosen = ref_chosen, .ref_rejected = ref_rejected},
        options_.loss);
    ReportMean("train/loss", loss.per_pair.detach(), metrics);
    ReportMean("train/rewards/chosen", loss.chosen_rewards, metrics);
    ReportMean("train/rewards/rejected", loss.rejected_rewards, metrics);
    ReportPairs("train/", "margin", loss.chosen_rewards, loss.rejected_rewards, metrics);
    if (options_.nll_coef == 0) return algo::PairMean(loss.per_pair, PairsOf(batch));
    const at::Tensor nll = -InPairs(algo::MeanBySequence(batch.log_probs, batch.tokens)).first;
    ReportMean("train/nll", nll.detach(), metrics);
    return algo::PairMean(loss.per_pair + options_.nll_coef * nll, PairsOf(batch));
  }

 private:
  const DpoObjectiveOptions options_;
};

class RewardObjective final : public PairObjective {
 public:
  explicit RewardObjective(const RewardObjectiveOptions& options) : options_(options) {}

  std::vector<std::string> columns() const override {
    if (options_.loss == RewardObjectiveOptions::Loss::kEveryToken) return {kComparedFrom};
    return options_.margins ? std::vector<std::string>{kMargin} : std::vector<std::string>{};
  }
  Scored scored() const override { return Scored::kValuesAt; }

  at::Tensor Loss(const TokenBatch& batch, StepMetrics& metrics) const override {
    const auto [chosen, rejected] = InPairs(AnswerScores(batch.values, batch.tokens, options_.score));
    const at::Tensor per_pair = options_.loss == RewardObjectiveOptions::Loss::kEveryToken
                                    ? OfEveryToken(batch)
                                    : algo::BradleyTerryLoss(chosen, rejected, Margins(batch), options_.bradley_terry);
    const at::Tensor shown = per_pair.detach();
    ReportMean("train/loss", shown, metrics);
    ReportMean("train/chosen", chosen.detach(), metrics);
    ReportMean("train/rejected", rejected.detach(), metrics);
    ReportPairs("train/", "margin", chosen.detach(), rejected.detach(), metrics);
    return algo::PairMean(per_pair, PairsOf(batch));
  }

 private:
  // Those of the chosen answers' rows.
  at::Tensor Margins(const TokenBatch& batch) const {
    if (!options_.margins) return {};
    const at::Tensor of_answers = batch.columns.at(kMargin)
                                      .values.index_select(0, algo::LastCounted(batch.tokens))
                                      .to(batch.values.scalar_type());
    return InPairs(of_answers).first;
  }

  static at::Tensor OfEveryToken(const TokenBatch& batch) {
    const at::Tensor lengths =
        at::bincount(batch.tokens.sequence, {}, batch.tokens.sequences).to(at::kCPU, at::kLong).contiguous();
    const int64_t* const length = lengths.const_data_ptr<int64_t>();
    const at::Tensor& from = batch.columns.at(kComparedFrom).values;
    std::vector<at::Tensor> per_pair;
    int64_t begin = 0;
    for (int64_t s = 0; s < batch.tokens.sequences; s += 2) {
      TORCH_CHECK(length[s] == length[s + 1], "the answers of pair ", s / 2, " are padded to ", length[s], " and ",
                  length[s + 1], " tokens");
      // Padding to the longer answer, so that the span ends behind it.
      const algo::RewardPair pair{.begin = static_cast<int64_t>(from[begin].item<float>()), .end = length[s]};
      per_pair.push_back(algo::PairLoss(batch.values.narrow(0, begin, length[s]),
                                        batch.values.narrow(0, begin + length[s], length[s]), pair));
      begin += 2 * length[s];
    }
    return at::stack(per_pair);
  }

  const RewardObjectiveOptions options_;
};

}  // namespace

at::Tensor AnswerScores(const at::Tensor& values, const algo::Tokens& tokens, AnswerScore score) {
  if (score == AnswerScore::kLastToken) return algo::LastTokenScores(values, tokens);
  algo::LastCounted(tokens);  // throws for an answer of nothing
  algo::CheckTokens("values", values, tokens);
  return algo::MeanBySequence(values, tokens);
}

void ReportPairs(const std::string& prefix, const char* margin, const at::Tensor& chosen, const at::Tensor& rejected,
                 StepMetrics& metrics) {
  ReportMean(prefix + "accuracy", ((chosen > rejected).to(at::kDouble) + (chosen >= rejected).to(at::kDouble)) / 2,
             metrics);
  ReportMean(prefix + margin, chosen - rejected, metrics);
}

std::shared_ptr<const Objective> MakeDpoObjective(const DpoObjectiveOptions& options) {
  return std::make_shared<DpoObjective>(options);
}

std::shared_ptr<const Objective> MakeRewardObjective(const RewardObjectiveOptions& options) {
  return std::make_shared<RewardObjective>(options);
}

}  // namespace tdock::trainer
