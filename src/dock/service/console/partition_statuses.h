// The status of all partitions of a dock.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tdock/dock.h"

namespace tdock::console {

struct NamedPartition {
  std::string name = {};
  PartitionStatus status = {};
};

// Sorted by name. A partition that is dropped in the meantime is left out.
absl::StatusOr<std::vector<NamedPartition>> GetPartitionStatuses(Dock& dock);

}  // namespace tdock::console
