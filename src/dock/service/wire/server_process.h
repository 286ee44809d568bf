// A dock server in a process of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/child_process.h"

namespace tdock::service {

// Runs the program tdock-dock, which lies in the folder of this program. Not thread-safe.
class ServerProcess {
 public:
  // Serves at a free port of the loopback interface, and at a socket in a new folder; returns when it is ready.
  // `arguments` follow `serve`.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(const std::vector<std::string>& arguments = {});
  // Kills it.
  ~ServerProcess();

  ChildProcess& process() { return *process_; }
  // For ConnectDock.
  const std::string& tcp_address() const { return tcp_; }
  std::string socket_address() const { return "unix:" + folder_ + "/dock.sock"; }

 private:
  ServerProcess() = default;

  std::string folder_;
  std::unique_ptr<ChildProcess> process_;
  std::string tcp_;
};

}  // namespace tdock::service
