#include "tdock/dock_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "core/base/accept_failures.h"
#include "core/base/status.h"
#include "core/base/watchdog.h"
#include "core/rpc/stream_server.h"
#include "dock/local/served_dock.h"
#include "dock/service/remote/rpc_service.h"
#include "dock/service/remote/token.h"
#include "dock/service/wire/service.h"
#include "dock/service/wire/socket_server.h"
#include "dock/store/segment_memory.h"

namespace tdock {
namespace {

// Leases are numbered from the next number on, which no earlier server has reached, so that leases from before a
// restart are recognised. A number could only repeat after two starts within one second, or with more than a million
// leases in each second of a server's life.
LeaseId LastLease() {
  constexpr int64_t kEpoch = 1'577'836'800;  // 2020
  return static_cast<LeaseId>(absl::ToUnixSeconds(absl::Now()) - kEpoch) << 20;
}

class Server final : public DockServer {
 public:
  Server(const DockServerOptions& options, LeaseId last_lease)
      : pool_({.limit_bytes = options.memory_bytes == 0 ? SIZE_MAX : options.memory_bytes,
               .limit_name = "--memory (DockServerOptions::memory_bytes)"}),
        dock_(dock::MakeServedDock(
            {.local = options.dock,
             .memory_for = [this](absl::string_view) { return std::make_shared<dock::SegmentMemory>(pool_); },
             .last_lease = last_lease,
             .work = &work_})),
        service_(*dock_, {.dock_clock = options.dock.clock,
                          .session_grace = options.session_grace,
                          .last_lease = last_lease,
                          .work = &work_}),
        socket_failures_(options.on_stall),
        tcp_failures_(options.on_stall) {}
  ~Server() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Listen(const DockServerOptions& options) {
    if (!options.socket.empty()) {
      socket_failures_.ListensOn(absl::StrCat("unix:", options.socket));
      TDOCK_ASSIGN_OR_RETURN(
          socket_,
          service::SocketServer::Start(
              service_, pool_, {.path = options.socket, .heartbeats = &heartbeats_, .failures = &socket_failures_}));
    }
    if (!options.listen.empty()) TDOCK_RETURN_IF_ERROR(ListenToTcp(options));
    watchdog_ = std::make_unique<Watchdog>(
        heartbeats_, Probes(), WatchdogOptions{.stall_after = options.stall_after, .report = options.on_stall});
    return absl::OkStatus();
  }

  absl::Status ListenToTcp(const DockServerOptions& options) {
    rpc::StreamServerOptions rpc{.listen = options.listen,
                                 .tls = {options.tls_certificate, options.tls_key, options.tls_ca},
                                 .insecure = options.insecure,
                                 .heartbeat = heartbeats_.Add("TCP"),
                                 .failures = &tcp_failures_};
    if (!options.token_file.empty()) {
      TDOCK_ASSIGN_OR_RETURN(rpc.token, service::ReadTokenFile(options.token_file));
    } else if (!options.token.empty()) {
      TDOCK_ASSIGN_OR_RETURN(rpc.token, service::TokenFrom(options.token, "the token"));
    }
    TDOCK_ASSIGN_OR_RETURN(rpc_, rpc::StreamServer::Start(rpc, service::ServeOverRpc(service_, streams_)));
    host_ = options.listen.substr(0, options.listen.rfind(':'));
    tcp_failures_.ListensOn(tcp_address());
    return absl::OkStatus();
  }

  Dock& dock() override { return *dock_; }
  std::string tcp_address() const override { return rpc_ == nullptr ? "" : absl::StrCat(host_, ":", rpc_->port()); }
  std::string address() const override {
    return socket_ != nullptr ? absl::StrCat("unix:", socket_->path()) : tcp_address();
  }
  std::vector<std::string> warnings() const override {
    return rpc_ == nullptr ? std::vector<std::string>() : rpc_->warnings();
  }
  DockServerCounts counts() override {
    const service::Service::Counts counts = service_.counts();
    return {.sessions = counts.sessions,
            .calls_under_way = counts.calls_under_way,
            .calls = counts.calls,
            .pinned_answers = counts.pins,
            .leases = counts.leases,
            .memory_bytes = static_cast<int64_t>(pool_.held_bytes()),
            .arena_bytes = static_cast<int64_t>(pool_.held_bytes() + pool_.warm_bytes()),
            .accept_failures = socket_failures_.count() + tcp_failures_.count()};
  }

  absl::Status CheckHealth(absl::Duration within) override { return watchdog_->Check(within); }
  std::vector<std::string> CurrentStalls() override { return watchdog_->CurrentStalls(); }
  int64_t stalls() override { return watchdog_->stalls(); }

  void Shutdown(absl::Duration drain) override {
    if (rpc_ != nullptr) rpc_->StopAccepting();
    service_.Drain();
    const absl::Time deadline = absl::Now() + drain;
    service_.AwaitNoCalls(deadline);
    streams_->EndAll(absl::UnavailableError("the server is shutting down"));
    if (rpc_ != nullptr) rpc_->Shutdown(deadline);
    if (socket_ != nullptr) socket_->Shutdown(deadline);
  }

 private:
  // What a client's call needs.
  std::vector<Probe> Probes() {
    std::vector<Probe> probes = {{.name = "the sessions", .touch = [this](const auto&) { service_.counts(); }},
                                 {.name = "the dock", .touch = [this](const auto& say) { TouchPartitions(say); }}};
    if (socket_ != nullptr) {
      probes.push_back({.name = "an event loop", .touch = [this](const auto&) { socket_->Touch(); }});
    }
    return probes;
  }

  void TouchPartitions(const std::function<void(absl::string_view)>& say) {
    const absl::StatusOr<std::vector<std::string>> names = dock_->ListPartitions();
    for (size_t i = 0; names.ok() && i < names->size(); ++i) {
      say(absl::StrCat("partition '", (*names)[i], "'"));
      // It may have been dropped.
      dock_->LiveLeases((*names)[i], {}).status().IgnoreError();
    }
  }

  Heartbeats heartbeats_;
  dock::SegmentPool pool_;
  WorkQueue work_{WorkQueue::UsualThreads()};
  const std::unique_ptr<dock::ServedDock> dock_;
  service::Service service_;
  AcceptFailures socket_failures_, tcp_failures_;
  std::unique_ptr<service::SocketServer> socket_;
  const std::shared_ptr<service::SessionStreams> streams_ = std::make_shared<service::SessionStreams>();
  std::unique_ptr<rpc::StreamServer> rpc_;
  std::string host_;
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DockServer>> DockServer::Start(const DockServerOptions& options) {
  if (options.listen.empty() && options.socket.empty()) {
    return absl::InvalidArgumentError("a server needs an address to listen on, or the path of a socket");
  }
  auto server = std::make_unique<Server>(options, LastLease());
  TDOCK_RETURN_IF_ERROR(server->Listen(options));
  return server;
}

}  // namespace tdock
