#include "dock/shared/shared_dock.h"

#include "core/base/beside_program.h"
#include "core/base/status.h"

namespace tdock::dock {
namespace {

absl::StatusOr<OpenSharedDockFunction*> LoadService() {
  TDOCK_ASSIGN_OR_RETURN(void* const function, LoadBesideProgram(TDOCK_DOCK_PLUGIN, kOpenSharedDock,
                                                                 "what shares a dock with other processes"));
  return reinterpret_cast<OpenSharedDockFunction*>(function);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedDock>> OpenSharedDock(const SharedDockOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(OpenSharedDockFunction* const open, LoadService());
  absl::StatusOr<std::unique_ptr<SharedDock>> opened;
  (*open)(options, &opened);
  return opened;
}

}  // namespace tdock::dock
