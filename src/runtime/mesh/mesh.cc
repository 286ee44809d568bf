#include "runtime/mesh/mesh.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"

namespace tdock::runtime {
namespace {

constexpr int64_t kMostRanks = int64_t{1} << 20;

std::string Describe(std::span<const MeshDimension> dimensions) {
  return absl::StrJoin(dimensions, ", ", [](std::string* out, const MeshDimension& dimension) {
    absl::StrAppend(out, dimension.name, " ", dimension.size);
  });
}

absl::Status CheckDimensions(const std::vector<MeshDimension>& dimensions) {
  std::set<absl::string_view> names;
  absl::string_view open;
  for (const auto& [name, size] : dimensions) {
    if (name.empty()) return absl::InvalidArgumentError("a dimension of a mesh has no name; give it one, such as 'dp'");
    if (!names.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat("a mesh has two dimensions '", name, "'; names must differ"));
    }
    if (size < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("dimension '", name, "' has the size ", size,
                       "; it must be positive, or 0 for as many ranks as the other dimensions leave"));
    }
    if (size != kWhatIsLeft) continue;
    if (!open.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("dimensions '", open, "' and '", name,
                                                     "' both take the ranks that are left; give one of them a size"));
    }
    open = name;
  }
  return absl::OkStatus();
}

// "4 and 8": the divisors of `ranks` next to `size`, which is none.
std::string NearestDivisors(int64_t size, int64_t ranks) {
  int64_t below = std::min(size, ranks), above = size;
  while (ranks % below != 0) --below;
  if (size > ranks) return absl::StrCat(below);
  while (ranks % above != 0) ++above;
  return absl::StrCat(below, " and ", above);
}

}  // namespace

absl::StatusOr<Mesh> Mesh::Of(int64_t ranks, std::vector<MeshDimension> dimensions) {
  if (ranks < 1 || ranks > kMostRanks) {
    return absl::InvalidArgumentError(absl::StrCat("a mesh has from 1 to ", kMostRanks, " ranks, not ", ranks));
  }
  if (dimensions.empty()) return absl::InvalidArgumentError("a mesh has no dimensions; give it one, such as 'dp'");
  TDOCK_RETURN_IF_ERROR(CheckDimensions(dimensions));
  int64_t product = 1;
  MeshDimension* open = nullptr;
  std::vector<MeshDimension> fixed;
  for (MeshDimension& dimension : dimensions) {
    if (dimension.size == kWhatIsLeft) {
      open = &dimension;
      continue;
    }
    fixed.push_back(dimension);
    if (dimension.size > kMostRanks / product) {
      return absl::InvalidArgumentError(
          absl::StrCat("a mesh of ", Describe(fixed), " has more than ", kMostRanks, " ranks; there are ", ranks));
    }
    product *= dimension.size;
  }
  if (ranks % product != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a mesh of ", Describe(fixed), " has ", product,
                                                   " ranks, which does not divide ", ranks,
                                                   "; the nearest that do: ", NearestDivisors(product, ranks)));
  }
  if (open != nullptr) {
    open->size = ranks / product;
  } else if (product != ranks) {
    return absl::InvalidArgumentError(absl::StrCat("a mesh of ", Describe(dimensions), " has ", product,
                                                   " ranks, but there are ", ranks, "; one of its sizes must be ",
                                                   ranks / product, " times as large"));
  }
  return Mesh(ranks, std::move(dimensions));
}

absl::StatusOr<Mesh> Mesh::Of(const MeshSizes& sizes) {
  TDOCK_RETURN_IF_ERROR(tdock::CoordinatesOf(0, sizes).status());
  const int64_t ranks = sizes.tp * sizes.cp * sizes.dp * sizes.pp;
  return Of(ranks, {{"tp", sizes.tp}, {"cp", sizes.cp}, {"dp", sizes.dp}, {"pp", sizes.pp}});
}

bool Mesh::Has(absl::string_view name) const { return Find(name).ok(); }

absl::StatusOr<size_t> Mesh::Find(absl::string_view name) const {
  for (size_t i = 0; i < dimensions_.size(); ++i) {
    if (dimensions_[i].name == name) return i;
  }
  return absl::NotFoundError(absl::StrCat("the mesh has no dimension '", name, "'; it has ", ToString()));
}

absl::Status Mesh::CheckRank(int64_t rank) const {
  if (rank >= 0 && rank < ranks_) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("rank ", rank, " of a mesh of ", ranks_));
}

std::vector<int64_t> Mesh::Position(int64_t rank) const {
  std::vector<int64_t> position;
  for (const MeshDimension& dimension : dimensions_) {
    position.push_back(rank % dimension.size);
    rank /= dimension.size;
  }
  return position;
}

int64_t Mesh::RankOf(std::span<const int64_t> position) const {
  int64_t rank = 0;
  for (size_t i = dimensions_.size(); i-- > 0;) rank = rank * dimensions_[i].size + position[i];
  return rank;
}

absl::StatusOr<int64_t> Mesh::Size(absl::string_view name) const {
  TDOCK_ASSIGN_OR_RETURN(const size_t dimension, Find(name));
  return dimensions_[dimension].size;
}

absl::StatusOr<int64_t> Mesh::Coordinate(int64_t rank, absl::string_view name) const {
  TDOCK_ASSIGN_OR_RETURN(const size_t dimension, Find(name));
  TDOCK_RETURN_IF_ERROR(CheckRank(rank));
  return Position(rank)[dimension];
}

absl::StatusOr<std::vector<int64_t>> Mesh::Coordinates(int64_t rank) const {
  TDOCK_RETURN_IF_ERROR(CheckRank(rank));
  return Position(rank);
}

absl::StatusOr<int64_t> Mesh::RankAt(std::span<const int64_t> coordinates) const {
  if (coordinates.size() != dimensions_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a position in a mesh of ", ToString(), " has ", dimensions_.size(),
                                                   " coordinates, not ", coordinates.size()));
  }
  for (size_t i = 0; i < coordinates.size(); ++i) {
    if (coordinates[i] < 0 || coordinates[i] >= dimensions_[i].size) {
      return absl::OutOfRangeError(absl::StrCat("coordinate ", coordinates[i], " of dimension '", dimensions_[i].name,
                                                "', whose size is ", dimensions_[i].size));
    }
  }
  return RankOf(coordinates);
}

absl::StatusOr<std::vector<int64_t>> Mesh::GroupOf(int64_t rank, std::span<const std::string> names) const {
  TDOCK_RETURN_IF_ERROR(CheckRank(rank));
  std::vector<bool> varies(dimensions_.size());
  for (const std::string& name : names) {
    TDOCK_ASSIGN_OR_RETURN(const size_t dimension, Find(name));
    varies[dimension] = true;
  }
  std::vector<int64_t> group = {0};  // the ranks at the positions of the dimensions so far
  const std::vector<int64_t> position = Position(rank);
  for (size_t i = dimensions_.size(); i-- > 0;) {
    std::vector<int64_t> longer;
    for (const int64_t slower : group) {
      const int64_t begin = varies[i] ? 0 : position[i], end = varies[i] ? dimensions_[i].size : position[i] + 1;
      for (int64_t at = begin; at < end; ++at) longer.push_back(slower * dimensions_[i].size + at);
    }
    group = std::move(longer);
  }
  return group;
}

absl::StatusOr<std::vector<std::vector<int64_t>>> Mesh::Groups(std::span<const std::string> names) const {
  std::vector<std::vector<int64_t>> groups;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    TDOCK_ASSIGN_OR_RETURN(std::vector<int64_t> group, GroupOf(rank, names));
    if (group.front() == rank) groups.push_back(std::move(group));
  }
  return groups;
}

std::string Mesh::ToString() const { return Describe(dimensions_); }

}  // namespace tdock::runtime
