#include "trainer/stages/supervised_objective.h"

#include <ATen/ATen.h>

namespace tdock::trainer {
namespace {

class SupervisedObjective final : public Objective {
 public:
  std::vector<std::string> columns() const override { return {}; }

  at::Tensor Loss(const TokenBatch& batch, StepMetrics& metrics) const override {
    const at::Tensor loss = algo::SupervisedLoss(batch.log_probs, batch.tokens, batch.counts);
    const double tokens = algo::CountsOf(batch.tokens).tokens;
    metrics.Sum("train/tokens", tokens);
    if (tokens > 0) metrics.Mean("train/loss", loss.item<double>() * batch.counts.tokens / tokens, tokens);
    return loss;
  }
};

}  // namespace

std::shared_ptr<const Objective> MakeSupervisedObjective() { return std::make_shared<SupervisedObjective>(); }

}  // namespace tdock::trainer
