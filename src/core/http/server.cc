#include "core/http/server.h"

#include <poll.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/accept_failures.h"
#include "core/base/mutex.h"
#include "core/base/utf8.h"
#include "core/base/work_queue.h"
#include "core/http/connection.h"

namespace tdock::http {
namespace {

constexpr absl::Duration kRetryAccept = absl::Milliseconds(100);

class ServerOfBeast final : public Server {
 public:
  ServerOfBeast(ServerOptions options, Handler handler)
      : hub_(std::make_shared<Hub>(std::move(options), std::move(handler))),
        acceptor_(hub_->io),
        retry_(hub_->io),
        failures_(hub_->options.on_trouble),
        work_(std::max(hub_->options.threads, 1)) {
    hub_->work = &work_;
    if (hub_->options.is_quick) hub_->quick_work = &quick_work_.emplace(1);
  }
  // Handlers may wait for what only the end of their clients ends, so the connections are cut first.
  ~ServerOfBeast() override {
    asio::post(hub_->io, [this] {
      StopAccepting();
      hub_->CloseAll();
      guard_.reset();
    });
    if (thread_.joinable()) thread_.join();
    work_.AwaitIdle();
    if (quick_work_) quick_work_->AwaitIdle();
  }

  absl::Status Listen() {
    ErrorCode error;
    const ServerOptions& options = hub_->options;
    const std::string where = absl::StrCat(options.host, ":", options.port);
    const asio::ip::address address =
        asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, error);
    if (error) {
      return absl::InvalidArgumentError(
          absl::StrCat("the host ", Quoted(options.host), " is no address: give one such as 127.0.0.1, 0.0.0.0 or ::"));
    }
    const tcp::endpoint endpoint(address, static_cast<uint16_t>(options.port));
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) return absl::UnavailableError(absl::StrCat("cannot listen on ", where, ": ", error.message()));
    port_ = acceptor_.local_endpoint(error).port();
    failures_.ListensOn(absl::StrCat(options.host, ":", port_));
    return absl::OkStatus();
  }

  void Run() {
    guard_.emplace(hub_->io.get_executor());
    Accept();
    thread_ = std::thread([this] { hub_->io.run(); });
  }

  int port() const override { return port_; }
  size_t connections() const override {
    const MutexLock lock(hub_->mu);
    return hub_->count;
  }
  size_t waiting_requests() const override { return hub_->waiting_requests; }
  int64_t accept_failures() const override { return failures_.count(); }

  bool Drain(absl::Duration limit) override {
    const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(limit);
    asio::post(hub_->io, [this] {
      StopAccepting();
      hub_->draining = true;
      const auto open = hub_->open;
      for (const std::shared_ptr<Connection>& connection : open) connection->Drain();
      const MutexLock lock(hub_->mu);
      drained_ = true;
      hub_->changed.NotifyAll();
    });
    const MutexLock lock(hub_->mu);
    while (!drained_ || hub_->count > 0) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      hub_->changed.WaitUntil(hub_->mu, deadline);
    }
    return true;
  }

 private:
  void StopAccepting() {
    ErrorCode ignored;
    acceptor_.close(ignored);
    retry_.cancel();
  }

  void Accept() {
    acceptor_.async_accept([this](const ErrorCode& error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (error) return OnFailure(error);
      if (failures_.failing() && !AnyWaits()) failures_.End();
      Welcome(std::move(socket));
      Accept();
    });
  }

  void Welcome(tcp::socket socket) {
    ErrorCode ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    socket.non_blocking(true, ignored);
    const bool full = hub_->open.size() >= hub_->options.limits.max_connections && !hub_->MakeRoom();
    const auto connection = std::make_shared<Connection>(*hub_, std::move(socket));
    hub_->Add(connection);
    if (full) return connection->Refuse(hub_->Busy(503, "too many connections"));
    connection->Start();
  }

  // Connections that cannot be accepted stay in the system's queue. One of ours that does nothing makes room for them.
  void OnFailure(const ErrorCode& error) {
    if (AcceptFailures::IsShortage(error.value())) {
      // Without a descriptor, the system does not even look whether a connection waits.
      if (!AnyWaits()) return AcceptWhenOneWaits();
      failures_.Add(error.value());
      if (hub_->MakeRoom()) return Accept();
    }
    retry_.expires_after(absl::ToChronoNanoseconds(kRetryAccept));
    retry_.async_wait([this](const ErrorCode& cancelled) {
      if (!cancelled && acceptor_.is_open()) Accept();
    });
  }

  void AcceptWhenOneWaits() {
    acceptor_.async_wait(tcp::acceptor::wait_read, [this](const ErrorCode&) {
      if (acceptor_.is_open()) Accept();
    });
  }

  // True if a connection waits to be accepted.
  bool AnyWaits() {
    pollfd queue = {.fd = acceptor_.native_handle(), .events = POLLIN, .revents = 0};
    return ::poll(&queue, 1, 0) > 0;
  }

  const std::shared_ptr<Hub> hub_;
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  int port_ = 0;
  AcceptFailures failures_;
  bool drained_ TDOCK_GUARDED_BY(hub_->mu) = false;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> guard_;
  std::thread thread_;
  WorkQueue work_;
  std::optional<WorkQueue> quick_work_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(ServerOptions options, Handler handler) {
  auto server = std::make_unique<ServerOfBeast>(std::move(options), std::move(handler));
  if (absl::Status listening = server->Listen(); !listening.ok()) return listening;
  server->Run();
  return server;
}

}  // namespace tdock::http
