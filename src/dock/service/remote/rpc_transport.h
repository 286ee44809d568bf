// Requests over gRPC.
#pragma once

#include <memory>
#include <string>

#include "core/base/mutex.h"
#include "core/rpc/stream_client.h"
#include "dock/service/remote/pausable_connection.h"
#include "dock/service/wire/client_transport.h"
#include "tdock/fork_guard.h"

namespace tdock::service {

// Thread-safe.
class RpcTransport final : public ClientTransport, private PausableConnection {
 public:
  // `fork_guard` may be null; otherwise it must outlive this.
  explicit RpcTransport(const rpc::StreamClientOptions& options, ForkGuard* fork_guard = nullptr);
  ~RpcTransport() override;

  absl::StatusOr<message::Welcome> Connect(const message::Hello& hello, absl::Time deadline) override
      TDOCK_EXCLUDES(mu_);
  ClientAnswer Call(const message::Request& request, const Batch& batch, absl::Time deadline) override
      TDOCK_EXCLUDES(mu_);
  bool Tell(const message::Request& request, absl::Duration connect_within) override TDOCK_EXCLUDES(mu_);

 private:
  using Client = std::shared_ptr<rpc::StreamClient>;

  // The stream that keeps a session alive, and what arrived over it.
  struct Stream {
    Client client;  // outlives the stream
    Mutex mu;
    CondVar changed;
    bool welcomed TDOCK_GUARDED_BY(mu) = false;
    message::Welcome welcome TDOCK_GUARDED_BY(mu);
    bool over TDOCK_GUARDED_BY(mu) = false;
    absl::Status end TDOCK_GUARDED_BY(mu);
    // Destroyed first: then no callback runs any more.
    std::unique_ptr<rpc::ClientStream> stream;
  };

  void Pause(absl::Time deadline) override TDOCK_EXCLUDES(mu_);
  void Resume(absl::Time deadline) override TDOCK_EXCLUDES(mu_);

  // The connection; makes one if there is none. Waits while it is paused.
  absl::StatusOr<Client> GetClient(absl::Time deadline) TDOCK_EXCLUDES(mu_);

  const rpc::StreamClientOptions options_;
  ForkGuard* const fork_guard_;
  // For responses.
  const std::shared_ptr<Memory> memory_;
  Mutex mu_;
  CondVar resumed_;
  bool paused_ TDOCK_GUARDED_BY(mu_) = false;
  Client client_ TDOCK_GUARDED_BY(mu_);
  std::shared_ptr<Stream> stream_ TDOCK_GUARDED_BY(mu_);
  // The last call that was answered, with the session of the response.
  message::Hello hello_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::service
