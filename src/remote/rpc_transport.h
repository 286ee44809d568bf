// Requests over gRPC.
#pragma once

#include <memory>
#include <string>

#include "base/mutex.h"
#include "rpc/stream_client.h"
#include "wire/client_transport.h"

namespace tdock {

// Thread-safe.
class RpcTransport final : public ClientTransport {
 public:
  explicit RpcTransport(const rpc::StreamClientOptions& options);
  ~RpcTransport() override;

  absl::StatusOr<v1::Welcome> Connect(const v1::Hello& hello, absl::Time deadline) override TDOCK_EXCLUDES(mu_);
  ClientAnswer Call(const v1::Request& request, const Batch& batch, absl::Time deadline) override TDOCK_EXCLUDES(mu_);
  bool Tell(const v1::Request& request, absl::Duration connect_within) override TDOCK_EXCLUDES(mu_);

 private:
  // The stream that keeps a session, and what came over it.
  struct Stream {
    Mutex mu;
    CondVar changed;
    bool welcomed TDOCK_GUARDED_BY(mu) = false;
    v1::Welcome welcome TDOCK_GUARDED_BY(mu);
    bool over TDOCK_GUARDED_BY(mu) = false;
    absl::Status end TDOCK_GUARDED_BY(mu);
    // Destroyed first: then no callback runs any more.
    std::unique_ptr<rpc::ClientStream> stream;
  };

  absl::StatusOr<rpc::StreamClient*> Client(absl::Time deadline) TDOCK_EXCLUDES(mu_);

  rpc::StreamClientOptions options_;
  // For answers.
  const std::shared_ptr<Memory> memory_;
  Mutex mu_;
  std::unique_ptr<rpc::StreamClient> client_ TDOCK_GUARDED_BY(mu_);
  std::shared_ptr<Stream> stream_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock
