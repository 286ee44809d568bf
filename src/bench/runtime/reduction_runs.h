// Two processes that add up the gradients of a training step.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/clock.h"

namespace tdock::bench {

inline constexpr int kReductionRanks = 2;

// What the ranks do in a timed run. Rank 0 says it, by the largest of what they say.
enum class Reduction {
  kBuckets = 0,  // a step's gradients, in buckets of 25 MB, through a TensorCollective
  kBare = 1,     // as many bytes, in one all-reduce of c10d's ProcessGroupGloo
};

// Rank 0 of them, which says what all do. Not thread-safe.
class ReductionRuns {
 public:
  // Waits for the others at the port.
  static absl::StatusOr<std::unique_ptr<ReductionRuns>> Open(int port, bool quick);
  virtual ~ReductionRuns() = default;
  // The seconds of one. Internal if the sum is wrong.
  virtual absl::StatusOr<double> Run(Reduction reduction, Clock& clock) = 0;
  // Of the gradients.
  virtual double bytes() const = 0;
};

// Another rank: does what rank 0 says until it is killed, or rank 0 leaves.
absl::Status ServeReductions(int rank, int port, bool quick);

}  // namespace tdock::bench
