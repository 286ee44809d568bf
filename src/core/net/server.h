// A server of connections over Unix sockets, TCP and TLS.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/accept_failures.h"
#include "core/base/mutex.h"
#include "core/base/watchdog.h"
#include "core/net/connection.h"
#include "core/net/credentials.h"
#include "core/net/endpoint.h"
#include "core/net/loop.h"

namespace tdock::net {

// The answer to a hello.
struct Welcome {
  // Gets what the client sends from now on.
  std::unique_ptr<Handler> handler;
  std::string body = {};
  std::shared_ptr<const FileDescriptor> file = {};  // over a Unix socket
};

struct ServerOptions {
  Role role = Role::kDock;
  // Called on a loop's thread for a client that may come in. `rest` is that of its hello. An error ends the connection.
  std::function<absl::StatusOr<Welcome>(const std::shared_ptr<Connection>& connection, absl::string_view rest)>
      welcome = {};
  // The time within which a connection must say hello, or it is closed.
  absl::Duration hello_within = absl::Seconds(10);
  // Connections over TCP that have not said hello yet. When another arrives, the oldest is closed.
  size_t max_strangers = 256;
  // The limit on what a client has not read: beyond it, nothing more is read from it.
  size_t max_queued_bytes = size_t{16} << 20;
  int loops = 2;
  // Records what the loops do; must outlive the server. May be null.
  Heartbeats* heartbeats = nullptr;
  // Is told, in sentences, what people should know; thread-safe. May be empty.
  std::function<void(const std::string&)> log = {};
};

struct TcpOptions {
  // "host:port", an IPv6 address in brackets. Port 0: any free port.
  std::string listen = "127.0.0.1:0";
  CredentialFiles credentials = {};
  // Allows listening beyond the loopback interface without a token and without mutual TLS.
  bool insecure = false;
};

// Thread-safe, but for the methods that listen.
class Server {
 public:
  static absl::StatusOr<std::unique_ptr<Server>> Make(const ServerOptions& options);
  // Closes all connections, and removes Unix sockets.
  ~Server();

  // Errors: see ListenOnPath(). Only the user who runs the server may connect.
  absl::Status ListenOnSocket(const std::string& path);
  // FailedPrecondition: a host beyond the loopback interface without authentication. InvalidArgument, NotFound: a wrong
  // address or certificate. Unavailable: the address is in use.
  absl::Status ListenOnTcp(const TcpOptions& options);
  // The "host:port" of TCP; empty without it.
  const std::string& tcp_address() const { return tcp_address_; }
  // Warnings about the server's security, in sentences.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // Accepts no more connections; those that exist go on.
  void StopAccepting();
  // Closes all connections, with this goodbye.
  void CloseAll(const absl::Status& why);
  // Returns when each loop has run the tasks posted so far.
  void Touch();
  int64_t accept_failures() const;

 private:
  struct Listening;
  struct Served;
  class Greeter;

  explicit Server(const ServerOptions& options);

  absl::Status Listen(std::vector<std::unique_ptr<FileDescriptor>> sockets, const std::string& where,
                      std::shared_ptr<Credentials> credentials);
  void Accept(const std::shared_ptr<Listening>& listening);
  // On the thread of that loop.
  void Adopt(Served& served, std::unique_ptr<FileDescriptor> socket, const std::shared_ptr<Listening>& listening);
  void MakeRoomForStranger(Served& served);
  void Tick(Served& served);
  absl::Status Check(const Hello& hello, const Listening& listening) const;
  // Its socket becomes one of an earlier connection.
  absl::Status Join(const std::shared_ptr<Connection>& connection, const std::string& to) TDOCK_EXCLUDES(mu_);
  // A new id for a connection that others may join.
  std::string Name(const std::shared_ptr<Connection>& connection) TDOCK_EXCLUDES(mu_);

  const ServerOptions options_;
  std::vector<std::unique_ptr<Served>> loops_;
  // Used by the first loop's thread only, but for their counts.
  std::vector<std::shared_ptr<Listening>> listening_;
  size_t next_loop_ = 0;
  std::string tcp_address_;
  std::vector<std::string> warnings_;
  Mutex mu_;
  // By their ids, over TCP.
  absl::flat_hash_map<std::string, std::weak_ptr<Connection>> joinable_ TDOCK_GUARDED_BY(mu_);
  // Those that are gone are removed when there are so many.
  size_t sweep_at_ TDOCK_GUARDED_BY(mu_) = 64;
  // Unix sockets, and their files: another server may have replaced one by its own.
  struct Path {
    std::string path;
    dev_t device = 0;
    ino_t inode = 0;
  };
  std::vector<Path> paths_;
};

}  // namespace tdock::net
