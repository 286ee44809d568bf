#include "tdock/dock_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/watchdog.h"
#include "core/net/server.h"
#include "dock/local/served_dock.h"
#include "dock/service/wire/dock_connection.h"
#include "dock/service/wire/service.h"
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
                          .work = &work_}) {}
  ~Server() override {
    watchdog_.reset();
    Shutdown(absl::ZeroDuration());
    net_.reset();
    // Workers may still have connections.
    work_.AwaitIdle();
  }

  absl::Status Listen(const DockServerOptions& options) {
    TDOCK_ASSIGN_OR_RETURN(net_,
                           net::Server::Make({.role = net::Role::kDock,
                                              .welcome =
                                                  [this](const auto& connection, absl::string_view rest) {
                                                    return service::WelcomeToDock({service_, pool_}, connection, rest);
                                                  },
                                              .heartbeats = &heartbeats_,
                                              .log = options.on_stall}));
    if (!options.socket.empty()) TDOCK_RETURN_IF_ERROR(net_->ListenOnSocket(options.socket));
    if (!options.listen.empty()) {
      TDOCK_RETURN_IF_ERROR(
          net_->ListenOnTcp({.listen = options.listen,
                             .credentials = {.tls = {options.tls_certificate, options.tls_key, options.tls_ca},
                                             .token = options.token,
                                             .token_file = options.token_file},
                             .insecure = options.insecure}));
    }
    address_ = options.socket.empty() ? net_->tcp_address() : absl::StrCat("unix:", options.socket);
    watchdog_ = std::make_unique<Watchdog>(
        heartbeats_, Probes(), WatchdogOptions{.stall_after = options.stall_after, .report = options.on_stall});
    return absl::OkStatus();
  }

  Dock& dock() override { return *dock_; }
  std::string tcp_address() const override { return net_->tcp_address(); }
  std::string address() const override { return address_; }
  std::vector<std::string> warnings() const override { return net_->warnings(); }
  DockServerCounts counts() override {
    const service::Service::Counts counts = service_.counts();
    return {.sessions = counts.sessions,
            .calls_under_way = counts.calls_under_way,
            .calls = counts.calls,
            .pinned_answers = counts.pins,
            .leases = counts.leases,
            .memory_bytes = static_cast<int64_t>(pool_.held_bytes()),
            .arena_bytes = static_cast<int64_t>(pool_.held_bytes() + pool_.warm_bytes()),
            .accept_failures = net_->accept_failures()};
  }

  absl::Status CheckHealth(absl::Duration within) override { return watchdog_->Check(within); }
  std::vector<std::string> CurrentStalls() override { return watchdog_->CurrentStalls(); }
  int64_t stalls() override { return watchdog_->stalls(); }

  void Shutdown(absl::Duration drain) override {
    if (net_ != nullptr) net_->StopAccepting();
    service_.Drain();
    service_.AwaitNoCalls(absl::Now() + drain);
    // Answers that have been given are sent, as far as there is room.
    if (net_ != nullptr) net_->Touch();
    if (net_ != nullptr) net_->CloseAll(absl::UnavailableError("the server is shutting down"));
  }

 private:
  // Probes of the parts that a client's call needs.
  std::vector<Probe> Probes() {
    return {{.name = "the sessions", .touch = [this](const auto&) { service_.counts(); }},
            {.name = "the dock", .touch = [this](const auto& say) { TouchPartitions(say); }},
            {.name = "an event loop", .touch = [this](const auto&) { net_->Touch(); }}};
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
  std::unique_ptr<net::Server> net_;
  std::string address_;
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
