// Which rank does what in a mesh of model-parallel ranks: pure functions, deterministic and thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace tdock {

// How many ranks there are along each dimension; the ranks of one data-parallel coordinate are a replica of the model.
struct MeshSizes {
  int64_t tp = 1;  // tensor parallel: parts of each layer
  int64_t cp = 1;  // context parallel: parts of each sequence
  int64_t pp = 1;  // pipeline parallel: parts of the stack of layers
  int64_t dp = 1;  // data parallel: parts of the batch
};

// The position of a rank: from 0, below the sizes.
struct MeshCoordinates {
  int64_t tp = 0;
  int64_t cp = 0;
  int64_t pp = 0;
  int64_t dp = 0;

  friend bool operator==(const MeshCoordinates&, const MeshCoordinates&) = default;
};

// The position of a rank; ranks are numbered with tp varying fastest, then cp, then dp, then pp. InvalidArgument for a
// size that is not positive, OutOfRange for a rank that the mesh does not have.
absl::StatusOr<MeshCoordinates> CoordinatesOf(int64_t rank, const MeshSizes& sizes);

// Whether a rank is the one that asks the dock on behalf of its replica: the first of tp, cp and pp. A mesh for
// inference has a cp of 1, so there it is the first of tp and pp. OutOfRange if the coordinates are not in the mesh.
absl::StatusOr<bool> AsksDock(const MeshCoordinates& at, const MeshSizes& sizes);

// Whether a rank is the one that puts the results of its replica: in the last pipeline stage, where the results are,
// the first of tp, whose ranks all have the same results, and the first of cp, so that nothing is put cp times.
// OutOfRange if the coordinates are not in the mesh.
absl::StatusOr<bool> PutsResults(const MeshCoordinates& at, const MeshSizes& sizes);

// The rows of a data-parallel rank, `rows_per_rank` from `rows_per_rank`·`rank` on, in chunks of `chunk`; the last may
// be shorter. InvalidArgument unless chunk > 0 and the others are 0 or more, for more than 2^28 rows or 2^20 chunks,
// and for rows beyond 2^62. (get_dp_range_indexes)
//
//   RowChunksOfRank(3, 8, 1)  →  {8, 9, 10}, {11, 12, 13}, {14, 15}
absl::StatusOr<std::vector<std::vector<int64_t>>> RowChunksOfRank(int64_t chunk, int64_t rows_per_rank, int64_t rank);

// How the tokens of a sequence are divided among context-parallel ranks.
enum class ContextSlicing {
  kContiguous,  // cp parts; rank r takes part r (Ulysses)
  kRing,  // 2·cp parts; rank r takes parts r and 2·cp − 1 − r, so that causal attention costs all ranks the same
};

// What the length of a sequence must be a multiple of, to be divided for sequence and context parallelism: tp·cp, or
// 2·tp·cp for a ring. InvalidArgument for a size that is not positive, or a product beyond 2^62.
absl::StatusOr<int64_t> SequenceMultiple(const MeshSizes& sizes, ContextSlicing slicing);

struct TokenRange {
  int64_t begin = 0;
  int64_t count = 0;

  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

// The tokens of a sequence of `length` that context-parallel rank `rank` of `cp` takes: one range, or two for a ring.
// InvalidArgument if the length cannot be divided into that many equal parts, OutOfRange for a rank outside [0, cp).
absl::StatusOr<std::vector<TokenRange>> ContextSlices(int64_t length, int64_t rank, int64_t cp, ContextSlicing slicing);

}  // namespace tdock
