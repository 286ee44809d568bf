#include "tdock/mesh_rules.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/tensor/count_limits.h"

namespace tdock {
namespace {

constexpr int64_t kMost = int64_t{1} << 62;

absl::Status CheckSizes(const MeshSizes& sizes) {
  int64_t ranks = 1;
  const std::pair<const char*, int64_t> all[] = {
      {"tp", sizes.tp}, {"cp", sizes.cp}, {"pp", sizes.pp}, {"dp", sizes.dp}};
  for (const auto& [name, size] : all) {
    if (size <= 0) return absl::InvalidArgumentError(absl::StrCat(name, " is ", size, "; it must be positive"));
    if (size > kMost / ranks) return absl::InvalidArgumentError("a mesh has at most 2^62 ranks");
    ranks *= size;
  }
  return absl::OkStatus();
}

absl::Status CheckRank(const char* name, int64_t rank, int64_t size) {
  if (rank >= 0 && rank < size) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(name, " rank ", rank, " of ", size));
}

absl::Status CheckPlace(const MeshCoordinates& at, const MeshSizes& sizes) {
  TDOCK_RETURN_IF_ERROR(CheckSizes(sizes));
  TDOCK_RETURN_IF_ERROR(CheckRank("tp", at.tp, sizes.tp));
  TDOCK_RETURN_IF_ERROR(CheckRank("cp", at.cp, sizes.cp));
  TDOCK_RETURN_IF_ERROR(CheckRank("pp", at.pp, sizes.pp));
  return CheckRank("dp", at.dp, sizes.dp);
}

}  // namespace

absl::StatusOr<MeshCoordinates> CoordinatesOf(int64_t rank, const MeshSizes& sizes) {
  TDOCK_RETURN_IF_ERROR(CheckSizes(sizes));
  TDOCK_RETURN_IF_ERROR(CheckRank("global", rank, sizes.tp * sizes.cp * sizes.pp * sizes.dp));
  MeshCoordinates at;
  const auto take = [&rank](int64_t size) {
    const int64_t coordinate = rank % size;
    rank /= size;
    return coordinate;
  };
  at.tp = take(sizes.tp);
  at.cp = take(sizes.cp);
  at.dp = take(sizes.dp);
  at.pp = rank;
  return at;
}

absl::StatusOr<bool> AsksDock(const MeshCoordinates& at, const MeshSizes& sizes) {
  TDOCK_RETURN_IF_ERROR(CheckPlace(at, sizes));
  return at.tp == 0 && at.cp == 0 && at.pp == 0;
}

absl::StatusOr<bool> PutsResults(const MeshCoordinates& at, const MeshSizes& sizes) {
  TDOCK_RETURN_IF_ERROR(CheckPlace(at, sizes));
  return at.tp == 0 && at.cp == 0 && at.pp == sizes.pp - 1;
}

absl::StatusOr<std::vector<std::vector<int64_t>>> RowChunksOfRank(int64_t chunk, int64_t rows_per_rank, int64_t rank) {
  if (chunk <= 0 || rows_per_rank < 0 || rank < 0 || (rows_per_rank > 0 && rank > kMost / rows_per_rank - 1)) {
    return absl::InvalidArgumentError(absl::StrCat("there cannot be chunks of ", chunk, " rows for rank ", rank, " of ",
                                                   rows_per_rank, " rows each"));
  }
  TDOCK_RETURN_IF_ERROR(CheckAtMost("the number of rows per rank", rows_per_rank, kMaxRows));
  const int64_t count = rows_per_rank / chunk + (rows_per_rank % chunk == 0 ? 0 : 1);
  TDOCK_RETURN_IF_ERROR(CheckAtMost("the number of chunks", count, kMaxParts));
  std::vector<std::vector<int64_t>> chunks;
  const int64_t end = rows_per_rank * (rank + 1);
  for (int64_t row = rows_per_rank * rank; row < end; ++row) {
    if (chunks.empty() || static_cast<int64_t>(chunks.back().size()) == chunk) chunks.emplace_back();
    chunks.back().push_back(row);
  }
  return chunks;
}

absl::StatusOr<int64_t> SequenceMultiple(const MeshSizes& sizes, ContextSlicing slicing) {
  TDOCK_RETURN_IF_ERROR(CheckSizes(sizes));
  const int64_t parts = slicing == ContextSlicing::kRing ? 2 : 1;
  if (sizes.tp * sizes.cp > kMost / parts) return absl::InvalidArgumentError("2·tp·cp exceeds 2^62");
  return parts * sizes.tp * sizes.cp;
}

absl::StatusOr<std::vector<TokenRange>> ContextSlices(int64_t length, int64_t rank, int64_t cp,
                                                      ContextSlicing slicing) {
  TDOCK_RETURN_IF_ERROR(CheckSizes({.cp = cp}));
  TDOCK_RETURN_IF_ERROR(CheckRank("cp", rank, cp));
  TDOCK_ASSIGN_OR_RETURN(const int64_t parts, SequenceMultiple({.cp = cp}, slicing));
  if (length < 0 || length % parts != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a sequence of ", length, " tokens does not make ", parts,
                                                   " equal parts; pad it to a multiple of ", parts));
  }
  const int64_t size = length / parts;
  std::vector<TokenRange> ranges = {{rank * size, size}};
  if (slicing == ContextSlicing::kRing) ranges.push_back({(parts - 1 - rank) * size, size});
  return ranges;
}

}  // namespace tdock
