// Serves a dock over gRPC.
#pragma once

#include <memory>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "core/base/mutex.h"
#include "core/rpc/stream_server.h"
#include "dock/service/wire/service.h"

namespace tdock::service {

// The streams that keep sessions alive. Thread-safe.
class SessionStreams {
 public:
  void Add(const std::shared_ptr<rpc::CallSink>& stream) TDOCK_EXCLUDES(mu_);
  void Remove(const std::shared_ptr<rpc::CallSink>& stream) TDOCK_EXCLUDES(mu_);
  // Ends the existing ones: clients keep them for as long as they live, and a server that shuts down would wait.
  void EndAll(const absl::Status& why) TDOCK_EXCLUDES(mu_);

 private:
  Mutex mu_;
  absl::flat_hash_set<std::shared_ptr<rpc::CallSink>> streams_ TDOCK_GUARDED_BY(mu_);
};

// The handlers with which a stream server answers the methods of envelope.h. The service must outlive the server.
rpc::HandlerFactory ServeOverRpc(Service& service, std::shared_ptr<SessionStreams> streams = nullptr);

}  // namespace tdock::service
