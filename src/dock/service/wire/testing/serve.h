// For tests: a client's dock that includes its server.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "core/base/testing/patience.h"
#include "dock/local/served_dock.h"
#include "dock/service/wire/client_session.h"
#include "dock/service/wire/remote_dock.h"
#include "dock/service/wire/service.h"
#include "dock/service/wire/socket_server.h"
#include "dock/service/wire/socket_transport.h"
#include "dock/store/segment_memory.h"

namespace tdock::service {

// A temporary folder, removed with this object.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = "/tmp/tdock-test-XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~ScratchFolder() { rmdir(path_.c_str()); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A dock, and the service over it. Its cells lie in segments.
struct TestService {
  explicit TestService(const LocalDockOptions& local = {}, ServiceOptions options = {})
      : dock(dock::MakeServedDock(
            {.local = local,
             .memory_for = [this](absl::string_view) { return std::make_shared<dock::SegmentMemory>(pool); },
             .work = &work})),
        service(*dock, With(options, local.clock, &work)) {}

  static ServiceOptions With(ServiceOptions options, Clock* clock, WorkQueue* work) {
    options.dock_clock = clock;
    options.work = work;
    return options;
  }

  dock::SegmentPool pool;
  WorkQueue work{2};
  std::unique_ptr<dock::ServedDock> dock;
  Service service;
};

// The same, listening on a socket.
struct TestSocketServer : TestService {
  explicit TestSocketServer(const LocalDockOptions& local = {}, const SocketLimits& limits = {},
                            const ServiceOptions& options = {})
      : TestService(local, options) {
    auto started = SocketServer::Start(service, pool, {.path = path(), .limits = limits});
    if (started.ok()) server = *std::move(started);
  }
  std::string path() const { return folder.File("dock.sock"); }

  ScratchFolder folder;
  // Null if it could not be started.
  std::unique_ptr<SocketServer> server;
};

// Keeps something alive longer than a transport.
class OwningTransport final : public ClientTransport {
 public:
  OwningTransport(std::shared_ptr<void> owned, std::unique_ptr<ClientTransport> transport)
      : owned_(std::move(owned)), transport_(std::move(transport)) {}

  absl::StatusOr<message::Welcome> Connect(const message::Hello& hello, absl::Time deadline) override {
    return transport_->Connect(hello, deadline);
  }
  ClientAnswer Call(const message::Request& request, const Batch& batch, absl::Time deadline) override {
    return transport_->Call(request, batch, deadline);
  }
  bool Tell(const message::Request& request, absl::Duration connect_within) override {
    return transport_->Tell(request, connect_within);
  }

 private:
  const std::shared_ptr<void> owned_;
  const std::unique_ptr<ClientTransport> transport_;
};

// Null if no server answers.
inline std::unique_ptr<Dock> ConnectThrough(std::unique_ptr<ClientTransport> transport, Clock& clock,
                                            const ClientSessionOptions& options = {.reconnect_for = kPatience,
                                                                                   .answer_within = kPatience}) {
  auto session = std::make_shared<ClientSession>(std::move(transport), options);
  if (!session->Connect().ok()) return nullptr;
  return MakeRemoteDock(std::move(session), clock);
}

}  // namespace tdock::service
