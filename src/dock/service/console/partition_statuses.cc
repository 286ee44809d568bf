#include "dock/service/console/partition_statuses.h"

#include <utility>

#include "core/base/status.h"

namespace tdock::console {

absl::StatusOr<std::vector<NamedPartition>> GetPartitionStatuses(Dock& dock) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, dock.ListPartitions());
  std::vector<NamedPartition> partitions;
  for (const std::string& name : names) {
    absl::StatusOr<PartitionStatus> status = dock.GetStatus(name);
    if (absl::IsNotFound(status.status())) continue;
    TDOCK_RETURN_IF_ERROR(status.status());
    partitions.push_back({name, *std::move(status)});
  }
  return partitions;
}

}  // namespace tdock::console
