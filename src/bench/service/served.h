// A server process and a client of it, for one benchmark.
#pragma once

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "core/base/status.h"
#include "dock/service/wire/server_process.h"
#include "tdock/remote_dock.h"

namespace tdock::bench {

enum class Over { kTcp, kSocket };

struct Served {
  std::unique_ptr<service::ServerProcess> server;
  std::unique_ptr<Dock> dock;

  static absl::StatusOr<std::shared_ptr<Served>> Start(Over over) {
    auto served = std::make_shared<Served>();
    TDOCK_ASSIGN_OR_RETURN(served->server, service::ServerProcess::Start());
    TDOCK_ASSIGN_OR_RETURN(served->dock, served->Connect(over));
    return served;
  }
  ~Served() { dock.reset(); }

  absl::StatusOr<std::unique_ptr<Dock>> Connect(Over over) const {
    return ConnectDock({.address = over == Over::kTcp ? server->tcp_address() : server->socket_address()});
  }
};

}  // namespace tdock::bench
