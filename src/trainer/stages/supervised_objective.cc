#include "trainer/stages/supervised_objective.h"

#include <ATen/ATen.h>

#include <utility>

namespace tdock::trainer {
namespace {

class SupervisedObjective final : public Objective {
 public:
  SupervisedObjective(std::string prefix, double weight) : prefix_(std::move(prefix)), weight_(weight) {}

  std::vector<std::string> columns() const override { return {}; }

  at::Tensor Loss(const TokenBatch& batch, StepMetrics& metrics) const override {
    const at::Tensor loss = algo::SupervisedLoss(batch.log_probs, batch.tokens, batch.counts);
    const double tokens = algo::CountsOf(batch.tokens).tokens;
    metrics.Sum(prefix_ + "tokens", tokens);
    if (tokens > 0) metrics.Mean(prefix_ + "loss", loss.item<double>() * batch.counts.tokens / tokens, tokens);
    return loss * weight_;
  }

 private:
  const std::string prefix_;
  const double weight_;
};

}  // namespace

std::shared_ptr<const Objective> MakeSupervisedObjective(std::string prefix, double weight) {
  return std::make_shared<SupervisedObjective>(std::move(prefix), weight);
}

}  // namespace tdock::trainer
