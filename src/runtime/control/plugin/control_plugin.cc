// The shared object that OpenController() and JoinController() load.
#include <memory>

#include "runtime/control/rpc_controller.h"

extern "C" void tdock_open_controller(const tdock::runtime::ControllerOptions& options,
                                      absl::StatusOr<std::unique_ptr<tdock::runtime::Controller>>* opened) {
  *opened = tdock::runtime::OpenRpcController(options);
}

extern "C" void tdock_join_controller(const tdock::runtime::WorkerOptions& options,
                                      absl::StatusOr<std::unique_ptr<tdock::runtime::WorkerSession>>* joined) {
  *joined = tdock::runtime::JoinRpcController(options);
}
