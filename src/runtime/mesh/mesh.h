// A mesh: ranks arranged along named dimensions, such as tp, cp, dp and pp.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tdock/mesh_rules.h"

namespace tdock::runtime {

// Of a dimension that takes all ranks which the others leave.
inline constexpr int64_t kWhatIsLeft = 0;

struct MeshDimension {
  std::string name = {};
  int64_t size = kWhatIsLeft;

  friend bool operator==(const MeshDimension&, const MeshDimension&) = default;
};

// Ranks 0 … ranks() − 1, each at one position. The first dimension varies fastest:
//
//   {tp 2, dp 2, pp 2}     rank  0  1  2  3  4  5  6  7
//                          tp    0  1  0  1  0  1  0  1
//                          dp    0  0  1  1  0  0  1  1
//                          pp    0  0  0  0  1  1  1  1
//
// An immutable value; thread-safe. Errors name the dimension or the rank: NotFound for a dimension that the mesh does
// not have, OutOfRange for a rank.
class Mesh {
 public:
  // InvalidArgument if a dimension has no name, another's name or a negative size; if more than one is kWhatIsLeft; or
  // if the sizes do not multiply to `ranks`: with both numbers, and the nearest that are possible.
  static absl::StatusOr<Mesh> Of(int64_t ranks, std::vector<MeshDimension> dimensions);
  // tp, cp, dp and pp, numbered as by CoordinatesOf (tdock/mesh_rules.h). InvalidArgument for a size that is not
  // positive.
  static absl::StatusOr<Mesh> Of(const MeshSizes& sizes);

  int64_t ranks() const { return ranks_; }
  // The fastest first.
  std::span<const MeshDimension> dimensions() const { return dimensions_; }
  bool Has(absl::string_view name) const;

  absl::StatusOr<int64_t> Size(absl::string_view name) const;
  // The position of a rank along one dimension, or along each in the order of dimensions().
  absl::StatusOr<int64_t> Coordinate(int64_t rank, absl::string_view name) const;
  absl::StatusOr<std::vector<int64_t>> Coordinates(int64_t rank) const;
  // The rank at a position. InvalidArgument for a wrong number of coordinates, OutOfRange for one that is not in the
  // mesh.
  absl::StatusOr<int64_t> RankAt(std::span<const int64_t> coordinates) const;

  // The ranks, ascending, whose positions differ from that of `rank` along `names` only: with {"tp"}, those that
  // compute the same layers together. `rank` is one of them.
  absl::StatusOr<std::vector<int64_t>> GroupOf(int64_t rank, std::span<const std::string> names) const;
  // Every such group once, in the order of their first ranks.
  absl::StatusOr<std::vector<std::vector<int64_t>>> Groups(std::span<const std::string> names) const;

  // "tp 2, dp 2, pp 2".
  std::string ToString() const;

  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  Mesh(int64_t ranks, std::vector<MeshDimension> dimensions) : ranks_(ranks), dimensions_(std::move(dimensions)) {}

  absl::StatusOr<size_t> Find(absl::string_view name) const;
  absl::Status CheckRank(int64_t rank) const;
  // Of a rank that exists.
  std::vector<int64_t> Position(int64_t rank) const;
  int64_t RankOf(std::span<const int64_t> position) const;

  int64_t ranks_;
  std::vector<MeshDimension> dimensions_;
};

}  // namespace tdock::runtime
