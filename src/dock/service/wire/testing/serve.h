// For tests: a client's dock that includes its server.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "core/base/testing/patience.h"
#include "core/net/server.h"
#include "core/net/testing/certificates.h"
#include "dock/local/served_dock.h"
#include "dock/service/wire/client_session.h"
#include "dock/service/wire/dock_connection.h"
#include "dock/service/wire/remote_dock.h"
#include "dock/service/wire/service.h"
#include "dock/service/wire/transport.h"
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

// How clients reach a server.
enum class Over { kUnix, kTcp, kTls };

// The same, which clients can reach.
struct TestServer : TestService {
  explicit TestServer(Over by = Over::kUnix, const LocalDockOptions& local = {}, const ConnectionLimits& limits = {},
                      const ServiceOptions& options = {})
      : TestService(local, options),
        over(by),
        server(net::Server::Make({.welcome = [this, limits](const auto& connection, absl::string_view rest) {
                 return WelcomeToDock({service, pool, limits}, connection, rest);
               }}).value()) {
    net::TcpOptions tcp;
    if (over == Over::kTls) tcp.credentials.tls = net::TestCertificates().Files("ours", "ours");
    EXPECT_EQ(over == Over::kUnix ? server->ListenOnSocket(path()) : server->ListenOnTcp(tcp), absl::OkStatus());
  }
  ~TestServer() {
    server.reset();
    work.AwaitIdle();
  }
  std::string path() const { return folder.File("dock.sock"); }
  net::ServerAddress address() const {
    if (over == Over::kUnix) return {.address = "unix:" + path()};
    net::CredentialFiles files;
    if (over == Over::kTls) files.tls = net::TestCertificates().Files("ours", "ours");
    return {.address = server->tcp_address(),
            .credentials = net::Credentials::Load(files, net::Tls::Side::kClient).value()};
  }

  const Over over;
  ScratchFolder folder;
  std::unique_ptr<net::Server> server;
};

// Keeps something alive longer than a transport.
class OwningTransport final : public ClientTransport {
 public:
  OwningTransport(std::shared_ptr<void> owned, std::unique_ptr<ClientTransport> transport)
      : owned_(std::move(owned)), transport_(std::move(transport)) {}

  absl::StatusOr<message::Welcome> Connect(const message::Hello& hello, absl::Time deadline) override {
    return transport_->Connect(hello, deadline);
  }
  ClientAnswer Call(const std::string& session, const message::Request& request, const Batch& batch,
                    absl::Time deadline) override {
    return transport_->Call(session, request, batch, deadline);
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
