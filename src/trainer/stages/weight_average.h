// The exponential moving average of the weights that are trained.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/decoder/decoder.h"
#include "trainer/checkpoint/state.h"

namespace tdock::trainer {

// average ← decay · average + (1 − decay) · weights after each optimizer step, from the weights at the beginning
// (Polyak and Juditsky 1992; DeepSpeed-Chat's --enable_ema). In float32 at least. Not thread-safe.
class WeightAverage final : public Stateful {
 public:
  // 0 < `decay` < 1. The decoder must outlive it.
  WeightAverage(model::Decoder& decoder, double decay);

  void Update();

  void Save(State& state) const override;
  absl::Status Load(const State& state) override;

  // Exchanges the decoder's weights for the average, and those of the average for them. A second call undoes the first,
  // but that the average has been rounded to the dtype of the weights; no Update() in between.
  void Swap();

 private:
  const std::vector<at::Tensor> weights_;
  const double decay_;
  std::vector<at::Tensor> average_;
};

}  // namespace tdock::trainer
