// What a model is trained towards.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "trainer/stages/step_metrics.h"

namespace tdock::trainer {

// The response tokens of a micro-batch, N of them: those of all its samples, one after another. On the policy's device.
struct TokenBatch {
  at::Tensor log_probs;    // float [N], under the policy, with gradients
  at::Tensor entropy;      // float [N], of the policy's distributions, without gradients; if wants_entropy()
  at::Tensor mask;         // float [N], 0 where the token must not count
  double token_count = 0;  // unmasked tokens in the whole mini-batch

  struct Values {
    at::Tensor values;   // float [N]
    bool fresh = false;  // computed with the weights as they are now
  };
  std::map<std::string, Values> columns;  // Objective::columns()
};

// Immutable, and so thread-safe.
class Objective {
 public:
  virtual ~Objective() = default;

  // The columns that it reads, beside the prompt, the response and its mask: ragged float32, a number for each token.
  virtual std::vector<std::string> columns() const = 0;

  virtual bool wants_entropy() const { return false; }

  // The micro-batch's part of the mini-batch's loss, a scalar with gradients. The parts of a mini-batch add up to the
  // same loss however it was cut: what is a mean divides by token_count. Figures go to `metrics`, which is this
  // micro-batch's alone. May throw.
  virtual at::Tensor Loss(const TokenBatch& batch, StepMetrics& metrics) const = 0;
};

}  // namespace tdock::trainer
