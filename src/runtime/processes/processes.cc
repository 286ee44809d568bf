#include "runtime/processes/processes.h"

#include "core/base/beside_program.h"
#include "core/base/status.h"

namespace tdock::runtime {
namespace {

template <class Function>
absl::StatusOr<Function*> Load(const char* name) {
  TDOCK_ASSIGN_OR_RETURN(void* const function,
                         LoadBesideProgram(TDOCK_RUNTIME_PLUGIN, name, "what speaks to the other processes of a run"));
  return reinterpret_cast<Function*>(function);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Controller>> OpenController(const ControllerOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(OpenControllerFunction* const open, Load<OpenControllerFunction>(kOpenController));
  absl::StatusOr<std::unique_ptr<Controller>> opened;
  (*open)(options, &opened);
  return opened;
}

absl::StatusOr<std::unique_ptr<WorkerSession>> JoinController(const WorkerOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(JoinControllerFunction* const join, Load<JoinControllerFunction>(kJoinController));
  absl::StatusOr<std::unique_ptr<WorkerSession>> joined;
  (*join)(options, &joined);
  return joined;
}

}  // namespace tdock::runtime
