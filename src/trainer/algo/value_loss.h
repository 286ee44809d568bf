// What a critic minimises.
#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/algo/aggregate.h"

namespace tdock::algo {

struct ValueLossOptions {
  double clip = 0.2;  // how far a value may move from the old one; 0: not limited
  Reduction reduction = {};
};

struct ValueLoss {
  at::Tensor loss;       // a scalar, with gradients: the part's share, see aggregate.h
  at::Tensor per_token;  // [N], with gradients; 0 for masked tokens
  at::Tensor clipped;    // bool [N]: the clipped term is the larger one, so that there is no gradient
};

// The aggregate of ½·max((V − R)², (clamp(V, V_old ± clip) − R)²) (Schulman et al.'s baselines; DeepSpeed-Chat; verl).
// values, old_values, returns: [N]. Gradients flow into `values` only. Throws for inputs that do not fit or are not
// finite where the mask counts.
ValueLoss ComputeValueLoss(const at::Tensor& values, const at::Tensor& old_values, const at::Tensor& returns,
                           const Tokens& tokens, const Counts& counts, const ValueLossOptions& options = {});

}  // namespace tdock::algo
