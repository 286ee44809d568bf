// The ranks that train a model together.
#pragma once

#include "absl/time/time.h"
#include "runtime/collective/tensor/tensor_collective.h"

namespace tdock::trainer {

// What each rank keeps whole, as in DeepSpeed's stages (Rajbhandari et al. 2020, arXiv:1910.02054).
enum class Zero {
  kNone = 0,       // everything
  kOptimizer = 1,  // weights and gradients; of the optimizer's state its part
  kGradients = 2,  // weights
  kWeights = 3,    // of everything its part; the weights of a layer are there while it computes
};

struct TrainingRanks {
  runtime::TensorCollective* group = nullptr;  // null: this process trains alone
  Zero zero = Zero::kNone;
  absl::Duration timeout = absl::Minutes(10);  // for the others to come to an operation
};

}  // namespace tdock::trainer
