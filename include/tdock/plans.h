// Which samples are computed on which rank, and in which micro-batch. Pure functions of the samples' lengths in tokens:
// deterministic, thread-safe, and exact for lengths from 0 to kMaxLength. A plan is a list of sets of positions, each
// position in exactly one of them, for use with MetaBatch::SelectRows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace tdock {

using Plan = std::vector<std::vector<int64_t>>;

inline constexpr int64_t kMaxLength = int64_t{1} << 40;

// One set of the same number of samples for each of `ranks` data-parallel ranks, with nearly the same work: the largest
// differencing method of Karmarkar and Karp (1982), begun with sets of one sample. The work of a sample of s tokens is
// taken as 24576·s + s², in proportion to the operations of a transformer of width 4096: 24·width²·s for the matrices
// of a layer, and 4·width·s² for attention.
//
// The rank with the most work comes first; of equal ones, the one to which the method first gave a sample of a later
// position. Within a rank the samples ascend in work and then descend: those in even places of the ascending order,
// then the others in reverse. So the first and the last micro-batches of a pipeline, which leave stages idle, are
// short.
//
// InvalidArgument if the samples cannot be divided into `ranks` sets of one size, for more than 2^20 ranks, or, naming
// the sample, for a length outside [0, kMaxLength].
absl::StatusOr<Plan> BalanceRanks(std::span<const int64_t> lengths, int64_t ranks);

struct MicroBatchOptions {
  // The most tokens in a micro-batch.
  int64_t max_tokens = 0;
  // The least number of micro-batches: the largest are split until there are that many. Ranks that must take the same
  // number of steps each plan once, and then again with the largest count as min_count.
  int64_t min_count = 0;
};

// Micro-batches of at most `max_tokens` tokens, by first-fit decreasing: at most 11/9 · the least possible number + 6/9
// (Dósa 2007). Positions ascend within a micro-batch; micro-batches are in the order of their first positions.
// O(n log n).
//
// InvalidArgument, naming the sample, if it alone has more than `max_tokens` or a length outside [0, kMaxLength]; or if
// there are fewer samples than `min_count`.
absl::StatusOr<Plan> PackMicroBatches(std::span<const int64_t> lengths, const MicroBatchOptions& options);

}  // namespace tdock
