// Serves a dock over a Unix socket, with shared memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "core/base/accept_failures.h"
#include "dock/service/wire/socket_connection.h"

namespace tdock::service {

struct SocketServerOptions {
  // Must be a new path, or the socket of a server that is gone. Only the user who runs the server may connect.
  std::string path = {};
  SocketLimits limits = {};
  // Records what the loops do; must outlive the server. May be null.
  Heartbeats* heartbeats = nullptr;
  // Is told of connections that cannot be accepted; must outlive the server. May be null.
  AcceptFailures* failures = nullptr;
};

// Thread-safe.
class SocketServer {
 public:
  // InvalidArgument for a path that is too long, AlreadyExists if another file is there or another server listens;
  // other errors are the system's, and name the path. Service and segments must outlive the server.
  static absl::StatusOr<std::unique_ptr<SocketServer>> Start(Service& service, dock::SegmentPool& segments,
                                                             const SocketServerOptions& options);
  // Closes all connections, and removes the socket.
  ~SocketServer();

  // Accepts no more connections, lets calls in progress end until the deadline of absl::Now(), and closes the
  // connections, saying that the server shuts down.
  void Shutdown(absl::Time deadline);

  // Returns when each loop has run the tasks posted so far.
  void Touch();

  const std::string& path() const { return options_.path; }

 private:
  // The connections of one loop; used by its thread only.
  struct Loop {
    std::shared_ptr<EventLoop> events;
    absl::flat_hash_map<int, std::shared_ptr<SocketConnection>> connections;
  };

  // Identifies the socket's file: another server may have replaced it by its own.
  struct FileId {
    dev_t device = 0;
    ino_t inode = 0;
    bool operator==(const FileId&) const = default;
  };
  static std::optional<FileId> IdOf(const std::string& path);

  SocketServer(const SocketConnection::Shared& shared, const SocketServerOptions& options, int listener)
      : shared_(shared), options_(options), listener_(listener), file_(IdOf(options.path)) {}

  absl::Status StartLoops();
  void Accept();
  // The system has no room for a connection: waiting ones are looked at again with the next tick.
  void PauseAccepting(int error);
  // On the loop's thread.
  void Adopt(Loop& loop, int fd);

  const SocketConnection::Shared shared_;
  const SocketServerOptions options_;
  const int listener_;
  const std::optional<FileId> file_;
  std::vector<std::unique_ptr<Loop>> loops_;
  // Used by the first loop's thread only.
  size_t next_loop_ = 0;
  bool pausing_ = false;
};

}  // namespace tdock::service
