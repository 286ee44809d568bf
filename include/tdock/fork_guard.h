// For programs that fork while they are connected to docks over TCP.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tdock {

// gRPC does not survive a fork: the child lacks its threads, and both processes would read from one poll set. So its
// connections are closed for the fork, and the parent makes them again; sessions survive, and calls under way are
// repeated. The child makes connections of its own and does not touch the parent's docks. (A Unix socket needs none of
// this.)
//
//   guard.Prepare(absl::Seconds(2));
//   if (fork() == 0) { … ForkGuard::BeginChild(), and if that is OK, ConnectDock … }
//   guard.Resume();
//
// Thread-safe. Must outlive the docks that it was given to (ConnectOptions).
class ForkGuard {
 public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  // Closes the connections; calls wait until Resume. Returns whether gRPC is no longer in use in this process; a server
  // that runs in it, or a connection without a guard, keeps it in use.
  bool Prepare(absl::Duration within);
  // Makes the connections again, within a second; if a server does not answer, the next call connects to it.
  void Resume();

  // Call it once in the child, before it connects over TCP. FailedPrecondition if gRPC was in use at the fork: then the
  // child must not connect over TCP.
  static absl::Status BeginChild();

  // Those that it closes: known to connections only.
  class Connections;

 private:
  const std::unique_ptr<Connections> connections_;
};

}  // namespace tdock
