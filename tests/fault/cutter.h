// A way to a server that is cut where the test says.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace tdock::fault {

// Listens at an address of its own, carries what comes to the server's and back, descriptors included, and ends the
// connection over which the byte passes that it was told; TCP with a reset. Thread-safe.
class Cutter {
 public:
  // `upstream` is "127.0.0.1:port" or "unix:/path".
  static absl::StatusOr<std::unique_ptr<Cutter>> Start(const std::string& upstream);
  ~Cutter();
  // For ConnectDock.
  const std::string& address() const { return address_; }

  // So many bytes from now on pass to the server or to the client, over all connections together; with the next, the
  // connection is cut. What was said before is forgotten.
  void CutAfter(bool to_server, int64_t bytes);
  int64_t cuts() const { return cuts_; }

 private:
  struct Link;

  Cutter() = default;
  absl::StatusOr<int> Dial() const;
  void Run();
  void Accept();
  // False if the link is to be ended.
  bool Forward(Link& link, bool to_server);

  std::string upstream_, address_, folder_;
  int listener_ = -1;
  int wake_[2] = {-1, -1};
  std::list<Link> links_;
  std::atomic<int64_t> left_[2] = {INT64_MAX, INT64_MAX};  // to the client, to the server
  std::atomic<int64_t> cuts_{0};
  std::thread thread_;
};

}  // namespace tdock::fault
