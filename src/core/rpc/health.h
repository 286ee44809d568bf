// The standard health service of gRPC. For this module only.
#pragma once

#include <memory>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/mutex.h"
#include "core/rpc/stream_server.h"

namespace tdock::rpc {

// Knows only the server as a whole, no services by name. Thread-safe; its handlers must not outlive it.
class Health {
 public:
  // Null for a method of another service.
  std::shared_ptr<CallHandler> Handle(absl::string_view method, const std::shared_ptr<CallSink>& sink);

  // The HealthCheckResponse to a HealthCheckRequest, or the error.
  absl::StatusOr<std::string> Check(absl::string_view request) const TDOCK_EXCLUDES(mu_);

  void StopServing() TDOCK_EXCLUDES(mu_);
  // Ends the calls of watchers, which would otherwise last as long as the server.
  void EndWatches() TDOCK_EXCLUDES(mu_);

 private:
  class Question;

  // Sends the server's state now and whenever it changes.
  void Watch(const std::shared_ptr<CallSink>& sink) TDOCK_EXCLUDES(mu_);
  bool IsServing() const TDOCK_EXCLUDES(mu_);
  void Remove(const std::shared_ptr<CallSink>& watch) TDOCK_EXCLUDES(mu_);

  mutable Mutex mu_;
  bool serving_ TDOCK_GUARDED_BY(mu_) = true;
  absl::flat_hash_set<std::shared_ptr<CallSink>> watches_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::rpc
