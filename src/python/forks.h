// Handling of connections when the process forks.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "tdock/dock_server.h"
#include "tdock/fork_guard.h"

namespace tdock::python {

// The guard of this process's connections. Needs the GIL.
ForkGuard* TheForkGuard();

// Records the address of a server or of a connection to one, whose sockets children of this process must close.
void RememberAddress(const std::string& address);

// Records a server in this process: as long as one serves TCP, its children cannot use gRPC.
void RememberServer(const std::shared_ptr<DockServer>& server);

// Records what keeps gRPC in use in this process until it is gone, such as a controller of workers.
void RememberRpc(std::weak_ptr<const void> user);

// FailedPrecondition for an address that this process must not connect to, because it was forked while gRPC was in use.
absl::Status CheckMayConnect(const std::string& address);

// The hooks of os.register_at_fork.
void BindForks(nanobind::module_& module);

}  // namespace tdock::python
