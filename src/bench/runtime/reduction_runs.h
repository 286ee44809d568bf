// Two processes that add up the gradients of a training step.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/clock.h"
#include "model/decoder/decoder.h"

namespace tdock::bench {

inline constexpr int kReductionRanks = 2;

// A Llama of 95 million parameters, or, for its memory, of 460 million; all are trained.
model::Decoder TrainedModel(bool quick, bool large);

// What the ranks do in a timed run. Rank 0 says it, by the largest of what they say.
enum class Reduction {
  kStep = 0,  // what the gradients of a step take in two ranks, less what they take in each of them alone
  kBare = 1,  // as many bytes, in one all-reduce of c10d's ProcessGroupGloo
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
