// Controllers and workers over gRPC: what OpenController() and JoinController() give.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/processes/processes.h"

namespace tdock::runtime {

absl::StatusOr<std::unique_ptr<Controller>> OpenRpcController(const ControllerOptions& options);
absl::StatusOr<std::unique_ptr<WorkerSession>> JoinRpcController(const WorkerOptions& options);

}  // namespace tdock::runtime
