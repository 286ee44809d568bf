// Processes that train a large model, for the memory that they take.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tdock::bench {

// A rank: takes a few steps, and prints the most bytes that were resident in the last of them. A rank that is alone has
// everything whole; several have their parts of everything (Zero::kWeights).
absl::Status TrainForMemory(int rank, int ranks, int port, bool quick);

// Starts so many ranks: the bytes of the one that has most.
absl::StatusOr<int64_t> MemoryOfRanks(int ranks, bool quick);

}  // namespace tdock::bench
