#include "trainer/stages/critic_objective.h"

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "trainer/stages/columns.h"

namespace tdock::trainer {
namespace {

class CriticObjective final : public Objective {
 public:
  explicit CriticObjective(const algo::ValueLossOptions& options) : options_(options) {}

  std::vector<std::string> columns() const override { return {kValues, kReturns}; }
  Scored scored() const override { return Scored::kValuesBefore; }

  void Prepare(TokenBatch& batch, uint64_t /*seed*/, StepMetrics& metrics) const override {
    const at::Tensor counts = batch.tokens.mask != 0;
    const at::Tensor returns = batch.columns.at(kReturns).values.masked_select(counts);
    const at::Tensor values = batch.columns.at(kValues).values.masked_select(counts);
    if (returns.numel() < 2) return;
    const double variance = returns.var().item<double>();
    if (variance > 0) metrics.Mean("critic/vf_explained_var", 1 - (returns - values).var().item<double>() / variance);
  }

  at::Tensor Loss(const TokenBatch& batch, StepMetrics& metrics) const override {
    const auto column = [&](const char* name) { return batch.columns.at(name).values.to(batch.values.scalar_type()); };
    const algo::ValueLoss loss =
        algo::ComputeValueLoss(batch.values, column(kValues), column(kReturns), batch.tokens, batch.counts, options_);
    const double tokens = algo::CountsOf(batch.tokens).tokens;
    const auto mean = [&](const char* name, const at::Tensor& values) {
      metrics.Mean(name, algo::TokenMean(values, batch.tokens.mask, tokens).item<double>(), tokens);
    };
    if (tokens > 0) {
      mean("critic/vf_loss", loss.per_token.detach());
      mean("critic/vf_clipfrac", loss.clipped.to(at::kFloat));
      mean("critic/vpred_mean", batch.values.detach());
    }
    return loss.loss;
  }

 private:
  const algo::ValueLossOptions options_;
};

}  // namespace

std::shared_ptr<const Objective> MakeCriticObjective(const algo::ValueLossOptions& options) {
  return std::make_shared<CriticObjective>(options);
}

}  // namespace tdock::trainer
