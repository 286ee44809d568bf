// The exponential moving average of the weights that are trained.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainer/checkpoint/state.h"
#include "trainer/stages/optimizer.h"

namespace tdock::trainer {

// Where the state of a run has it.
inline constexpr char kAverage[] = "average";

// average ← decay · average + (1 − decay) · weights after each optimizer step, from the weights at the beginning
// (Polyak and Juditsky 1992; DeepSpeed-Chat's --enable_ema). In float32 at least. Of ranks that train together each can
// average its parts: what they have saved, any number of ranks can load. Not thread-safe.
class WeightAverage final : public Stateful {
 public:
  // 0 < `decay` < 1. Begins with the weights as they are.
  WeightAverage(std::vector<ParameterPart> parts, double decay);

  void Update();

  void Save(State& state) const override;
  absl::Status Load(const State& state) override;

  // Exchanges the weights for the average, and those of the average for them. A second call undoes the first,
  // but that the average has been rounded to the dtype of the weights; no Update() in between.
  void Swap();

 private:
  const std::vector<ParameterPart> parts_;  // that are not empty
  const double decay_;
  std::vector<at::Tensor> average_;
};

}  // namespace tdock::trainer
