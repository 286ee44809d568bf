// For programs that fork while they have docks over TCP.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tdock {

// gRPC does not survive a fork: its threads are not in the child, and both processes would read from one poll set. So
// its connections are closed for that time, and made again by the parent; sessions last, and calls that run are asked
// again. The child connects anew, and does not touch docks of the parent. (Over a Unix socket nothing has to be done.)
//
//   guard.Prepare(absl::Seconds(2));
//   if (fork() == 0) { … ForkGuard::BeginChild(), and if that is OK, ConnectDock … }
//   guard.Resume();
//
// Thread-safe. Must outlive the docks that were given it (ConnectOptions).
class ForkGuard {
 public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  // Closes the connections; calls wait until Resume. Returns whether nothing of gRPC is left in this process, which a
  // server that it runs, or a connection without a guard, would keep in use.
  bool Prepare(absl::Duration within);
  // Makes the connections again, within a second; one whose server does not answer is left to the next call.
  void Resume();

  // Once in the child, before it connects over TCP. FailedPrecondition if gRPC was in use at the fork: then it must
  // not.
  static absl::Status BeginChild();

  // Those that it closes: known to connections only.
  class Connections;

 private:
  const std::unique_ptr<Connections> connections_;
};

}  // namespace tdock
