// The dock over HTTP, read-only: /metrics for Prometheus, / and /partition?name=… for people, /health for process
// supervisors.
//
// It shows names and counts, no samples, to anyone who can reach it: there is no token. It listens on the loopback
// interface unless configured otherwise.
#pragma once

#include <functional>
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
  // HOST:PORT; port 0 picks a free one.
  std::string address = "127.0.0.1:0";
  // The clock for the uptime; both must outlive the server.
  Clock& clock = Clock::Real();
  Env& env = Env::Real();
  Readings readings = {};
  // If the server does not answer, /health fails, and the other pages show only that and what is known without asking
  // it.
  Liveness liveness = {};
  // Responses that are made at the same time; /health has a thread of its own.
  int threads = 4;
  // In real time: for a request to arrive, for the next one of its connection, and without a byte of its response read.
  absl::Duration request_timeout = absl::Seconds(5);
  // Gets a sentence when connections cannot be accepted, and when they can again. On a thread of the server.
  std::function<void(const std::string&)> log = {};
};

// Thread-safe.
class StatusServer {
 public:
  // The dock must outlive the server. InvalidArgument for an invalid address, Unavailable if it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<StatusServer>> Start(Dock& dock, StatusServerOptions options);
  virtual ~StatusServer() = default;  // cancels the requests in progress

  virtual int port() const = 0;
};

}  // namespace tdock::console
