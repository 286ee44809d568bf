// What a model is trained towards.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trainer/algo/aggregate.h"
#include "trainer/algo/tokens.h"
#include "trainer/stages/policy.h"
#include "trainer/stages/step_metrics.h"

namespace tdock::trainer {

// The response tokens of a mini-batch, or of a micro-batch, a part of it: N of them, those of all its samples, one
// after another. On the policy's device.
struct TokenBatch {
  algo::Tokens tokens;     // the mask, and the sample of each token
  algo::Counts counts;     // of the whole mini-batch
  at::Tensor log_probs;    // float [N], under the policy, with gradients; of a micro-batch only
  at::Tensor entropy;      // float [N], of the policy's distributions, as entropy() says; of a micro-batch only
  at::Tensor values = {};  // instead of both, float [N], with gradients, where scored() is values

  struct Values {
    at::Tensor values;   // float [N]
    bool fresh = false;  // computed with the weights as they are now, and by passes that drop nothing, as all do here
  };
  std::map<std::string, Values> columns;  // Objective::columns(), and what Prepare() added
};

// The micro-batch's part of a mini-batch, without what the policy computes.
TokenBatch PartOf(const TokenBatch& mini_batch, const MicroBatch& micro);

// Immutable, and so thread-safe.
class Objective {
 public:
  virtual ~Objective() = default;

  // The columns that it reads, beside the prompt, the response and its mask: ragged float32, a number for each token;
  // or dense, a number for each sample, which its tokens then have.
  virtual std::vector<std::string> columns() const = 0;

  // What of the model it reads.
  virtual Scored scored() const { return Scored::kLogProbs; }
  virtual Entropy entropy() const { return Entropy::kNone; }
  // How many samples belong together: those of a prompt group, in the order of their rows, which are then the even and
  // odd sequences of a batch, and so on. 1: none do.
  virtual int64_t samples_together() const { return 1; }

  // Called once for each mini-batch, before it is cut: adds columns that depend on all its tokens. `seed` differs from
  // mini-batch to mini-batch. May throw.
  virtual void Prepare(TokenBatch& /*mini_batch*/, uint64_t /*seed*/, StepMetrics& /*metrics*/) const {}

  // The micro-batch's part of the mini-batch's loss, a scalar with gradients. The parts of a mini-batch add up to the
  // same loss however it was cut: what is a mean divides by `counts`. Figures go to `metrics`, which is this
  // micro-batch's alone. May throw.
  virtual at::Tensor Loss(const TokenBatch& batch, StepMetrics& metrics) const = 0;
};

}  // namespace tdock::trainer
