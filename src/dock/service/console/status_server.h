// The dock over HTTP, to be looked at: /metrics for Prometheus, / and /partition?name=… for people, /healthz for what
// restarts servers.
//
// It shows names and counts, no samples, to everybody who reaches it: there is no token. It listens on the loopback
// interface unless it is told otherwise.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/env.h"
#include "dock/service/console/metrics.h"
#include "tdock/dock.h"

namespace tdock::console {

struct StatusServerOptions {
  // HOST:PORT; port 0 takes a free one.
  std::string address = "127.0.0.1:0";
  // What the server is up for is counted by it; both must outlive the server.
  Clock& clock = Clock::Real();
  Env& env = Env::Real();
  Readings readings = {};
  // Where it does not answer, /healthz fails, and the other pages show that and nothing that would have to be asked
  // for.
  Liveness liveness = {};
  // Answers that are made at the same time.
  int threads = 4;
  // In real time: for a request to come, from when its connection does, and again for its answer to be read.
  absl::Duration request_timeout = absl::Seconds(5);
  size_t max_request_bytes = 16 << 10;
};

// Thread-safe. One request for each connection.
class StatusServer {
 public:
  // The dock must outlive the server. InvalidArgument for an address that is none, Unavailable if it cannot be listened
  // on.
  static absl::StatusOr<std::unique_ptr<StatusServer>> Start(Dock& dock, StatusServerOptions options);
  virtual ~StatusServer() = default;  // ends the requests that are being answered

  virtual int port() const = 0;
};

}  // namespace tdock::console
