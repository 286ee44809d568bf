// All partitions of a dock at once.
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

// Sorted by name. A partition that is dropped meanwhile is left out.
absl::StatusOr<std::vector<NamedPartition>> GetPartitionStatuses(Dock& dock);

}  // namespace tdock::console
