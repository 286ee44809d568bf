// The dock of a program that other processes work on, too. `dock/shared` serves it, or connects to it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tdock/clock.h"
#include "tdock/dock.h"

namespace tdock::dock {

// Exactly one of `serve` and `connect`.
struct SharedDockOptions {
  // Where to serve a dock of this process: "unix:/path" or "host:port", where port 0 is any free one; "unix": at a
  // socket beside the default one of `tdock dock serve`, named after this process.
  std::string serve = {};
  // The address of a dock that is served elsewhere.
  std::string connect = {};
  // Those of DockServerOptions or ConnectOptions: a text, and paths; empty for none.
  std::string token = {};
  std::string token_file = {};
  std::string tls_ca = {};
  std::string tls_cert = {};
  std::string tls_key = {};
  // Of a dock that is served elsewhere: how long its server may take to answer, beside the time that a call may wait.
  absl::Duration answer_within = absl::Seconds(30);
  // Of the dock; null: Clock::Real(). Must outlive the dock.
  Clock* clock = nullptr;
};

// Thread-safe.
class SharedDock {
 public:
  virtual ~SharedDock() = default;  // of a served one: ends its server

  virtual Dock& dock() = 0;
  virtual std::string address() const = 0;                // for other processes
  virtual std::vector<std::string> warnings() const = 0;  // about its security, in sentences
};

// Defined in dock/shared. A served dock has threads of its own, and raises the process's limit of file descriptors as
// far as the system allows. Errors are those of DockServer::Start() and ConnectDock().
absl::StatusOr<std::unique_ptr<SharedDock>> OpenSharedDock(const SharedDockOptions& options);

}  // namespace tdock::dock
