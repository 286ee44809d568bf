#include "runtime/launch/port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace tdock::runtime {
namespace {

// Binds a socket to the port, 0 for any, on all addresses, as rank 0 will. Returns the port, or minus errno.
int BindPort(int port) {
  sockaddr_in6 six = {};
  six.sin6_family = AF_INET6;
  six.sin6_addr = in6addr_any;
  six.sin6_port = htons(static_cast<uint16_t>(port));
  sockaddr_in four = {};
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  int bound = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool has_six = bound >= 0;  // some machines have no IPv6
  if (!has_six) bound = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bound < 0) return -errno;
  const absl::Cleanup closes = [bound] { close(bound); };
  const int yes = 1, no = 0;
  setsockopt(bound, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));  // connections of an earlier run do not count
  if (has_six) setsockopt(bound, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  sockaddr* const address = has_six ? reinterpret_cast<sockaddr*>(&six) : reinterpret_cast<sockaddr*>(&four);
  socklen_t size = has_six ? sizeof(six) : sizeof(four);
  if (bind(bound, address, size) != 0 || listen(bound, 1) != 0 || getsockname(bound, address, &size) != 0) {
    return -errno;
  }
  return ntohs(has_six ? six.sin6_port : four.sin_port);
}

}  // namespace

absl::StatusOr<int> FreePort() {
  const int port = BindPort(0);
  if (port < 0) return absl::ErrnoToStatus(-port, "cannot find a free port");
  return port;
}

absl::Status CheckPort(int port) {
  const int bound = BindPort(port);
  if (bound >= 0) return absl::OkStatus();
  const char* const why = bound == -EADDRINUSE ? "another program listens there" : strerror(-bound);
  return absl::InvalidArgumentError(
      absl::StrCat("port ", port, " of this machine cannot be used: ", why, "; name another, or 0 for a free one"));
}

}  // namespace tdock::runtime
