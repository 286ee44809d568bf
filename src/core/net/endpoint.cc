#include "core/net/endpoint.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::net {
namespace {

constexpr int kBacklog = 4096;

std::unique_ptr<FileDescriptor> NewSocket(int family) {
  return std::make_unique<FileDescriptor>(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Addresses> Resolve(const Endpoint& endpoint) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(endpoint.host.c_str(), absl::StrCat(endpoint.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::NotFoundError(
        absl::StrCat("host '", EscapeForMessage(endpoint.host), "' has no address: ", gai_strerror(error)));
  }
  return Addresses(found, &freeaddrinfo);
}

bool IsLoopbackAddress(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  if (address->sa_family != AF_INET6) return false;
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == IN_LOOPBACKNET);
}

bool IsWildcard(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr == htonl(INADDR_ANY);
  }
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

in_port_t& PortOf(sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(address).sin_port;
}

// Errors are errno's.
int ListenOnOne(sockaddr_storage address, socklen_t size, ListeningSockets& listening) {
  auto made = NewSocket(address.ss_family);
  if (made->fd() < 0) return errno;
  const int on = 1, off = 0;
  setsockopt(made->fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.ss_family == AF_INET6) setsockopt(made->fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  PortOf(address) = htons(static_cast<uint16_t>(listening.port));
  if (bind(made->fd(), reinterpret_cast<const sockaddr*>(&address), size) != 0) return errno;
  if (listen(made->fd(), kBacklog) != 0) return errno;
  if (getsockname(made->fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return errno;
  listening.port = ntohs(PortOf(address));
  listening.sockets.push_back(std::move(made));
  return 0;
}

int ListenOnAll(const addrinfo& addresses, int port, ListeningSockets& listening) {
  listening.port = port;
  int lacking = 0;
  for (const addrinfo* at = &addresses; at != nullptr; at = at->ai_next) {
    sockaddr_storage address = {};
    if (IsWildcard(at->ai_addr)) {
      // One socket for both families.
      address.ss_family = AF_INET6;
      if (ListenOnOne(address, sizeof(sockaddr_in6), listening) == 0) return 0;
    }
    std::memcpy(&address, at->ai_addr, at->ai_addrlen);
    const int error = ListenOnOne(address, at->ai_addrlen, listening);
    if (error == EAFNOSUPPORT || error == EADDRNOTAVAIL) {
      lacking = error;
    } else if (error != 0) {
      return error;
    }
  }
  return listening.sockets.empty() ? lacking : 0;
}

// Errors are errno's.
int ConnectSocket(int fd, const sockaddr* address, socklen_t size, absl::Time deadline) {
  if (connect(fd, address, size) == 0) return 0;
  // A Unix socket with a full backlog does not queue a connection.
  while (errno == EAGAIN && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
    if (connect(fd, address, size) == 0) return 0;
  }
  if (errno != EINPROGRESS && errno != EINTR) return errno;
  for (;;) {
    const absl::Duration left = std::min(deadline - absl::Now(), absl::Hours(1));
    pollfd watched{.fd = fd, .events = POLLOUT, .revents = 0};
    const int count =
        left <= absl::ZeroDuration() ? 0 : poll(&watched, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    if (count == 0) return ETIMEDOUT;
    if (count < 0 && errno == EINTR) continue;
    int error = 0;
    socklen_t error_size = sizeof(error);
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_size) != 0 ? errno : error;
  }
}

// Removes the socket of a server that is gone.
absl::Status RemoveStale(const std::string& path, const sockaddr_un& address) {
  struct stat there;
  if (lstat(path.c_str(), &there) != 0) return absl::OkStatus();
  if (!S_ISSOCK(there.st_mode)) {
    return absl::AlreadyExistsError(
        absl::StrCat("'", EscapeUnprintable(path), "' exists and is not a socket: give another path"));
  }
  const FileDescriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(probe.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return absl::AlreadyExistsError(absl::StrCat("another server listens on '", path, "'"));
  }
  unlink(path.c_str());
  return absl::OkStatus();
}

}  // namespace

std::string Endpoint::ToString() const {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port) : absl::StrCat("[", host, "]:", port);
}

absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text, absl::string_view what) {
  const auto wrong = [&] {
    return absl::InvalidArgumentError(absl::StrCat(what, " '", EscapeForMessage(text),
                                                   "' is not \"host:port\" with a port from 0 to 65535, such as "
                                                   "\"127.0.0.1:7000\" or \"[::1]:7000\""));
  };
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return wrong();
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port = text.substr(colon + 1);
  if (host.front() == '[') {
    if (host.back() != ']') return wrong();
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != absl::string_view::npos) {
    return wrong();
  }
  Endpoint endpoint{.host = std::string(host)};
  const bool is_number = absl::SimpleAtoi(port, &endpoint.port);
  const bool is_name = std::all_of(host.begin(), host.end(),
                                   [](unsigned char byte) { return absl::ascii_isgraph(byte) && byte != '/'; });
  if (!is_name || host.empty() || !is_number || endpoint.port < 0 || endpoint.port > 65535) return wrong();
  return endpoint;
}

absl::StatusOr<bool> IsLoopback(const Endpoint& endpoint) {
  TDOCK_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(endpoint));
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    if (!IsLoopbackAddress(at->ai_addr)) return false;
  }
  return true;
}

absl::StatusOr<ListeningSockets> ListenOn(const Endpoint& endpoint) {
  TDOCK_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(endpoint));
  // When the system chooses the port, another may listen on it at the second address.
  constexpr int kMaxTries = 10;
  int error = 0;
  for (int tries = 0; tries < (endpoint.port == 0 ? kMaxTries : 1); ++tries) {
    ListeningSockets listening;
    error = ListenOnAll(*addresses, endpoint.port, listening);
    if (error == 0) return listening;
    if (error != EADDRINUSE) break;
  }
  return absl::UnavailableError(absl::StrCat("cannot listen on ", endpoint.ToString(), ": ", strerror(error)));
}

absl::StatusOr<std::unique_ptr<FileDescriptor>> ConnectTo(const Endpoint& endpoint, absl::Time deadline) {
  TDOCK_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(endpoint));
  int error = EADDRNOTAVAIL;
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    auto made = NewSocket(at->ai_family);
    if (made->fd() < 0) return absl::ErrnoToStatus(errno, "cannot make a socket");
    error = ConnectSocket(made->fd(), at->ai_addr, at->ai_addrlen, deadline);
    if (error != 0) continue;
    TuneTcp(made->fd());
    return made;
  }
  return absl::UnavailableError(absl::StrCat("cannot connect to ", endpoint.ToString(), ": ", strerror(error)));
}

void TuneTcp(int fd) {
  const auto set = [fd](int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof(value)); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // A machine that is gone sends nothing; that of a process which is stopped, or reads nothing, still answers.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 2);
}

absl::StatusOr<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("the path of a socket, '", EscapeUnprintable(path, 200), "', has ",
                                                   path.size(), " bytes; it must have 1 to ",
                                                   sizeof(address.sun_path) - 1));
  }
  if (path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("the path of a socket, '", EscapeUnprintable(path), "', holds a zero byte"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::StatusOr<std::unique_ptr<FileDescriptor>> ListenOnPath(const std::string& path) {
  TDOCK_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  TDOCK_RETURN_IF_ERROR(RemoveStale(path, address));
  auto made = NewSocket(AF_UNIX);
  if (made->fd() < 0) return absl::ErrnoToStatus(errno, "cannot make a socket");
  // The mode applies from the first moment on; but the check of the peer's user is what counts.
  if (bind(made->fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0 || listen(made->fd(), kBacklog) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot listen on '", EscapeUnprintable(path), "'"));
  }
  return made;
}

absl::StatusOr<std::unique_ptr<FileDescriptor>> ConnectToPath(const std::string& path, absl::Time deadline) {
  TDOCK_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  auto made = NewSocket(AF_UNIX);
  if (made->fd() < 0) return absl::ResourceExhaustedError(absl::StrCat("cannot make a socket: ", strerror(errno)));
  const int error = ConnectSocket(made->fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address), deadline);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot connect to '", EscapeUnprintable(path), "': ", strerror(error)));
  }
  // Any user may listen at a path in /tmp before the server does, even where root looks for its own.
  if (IsOwnUser(made->fd())) return made;
  return absl::PermissionDeniedError(absl::StrCat("another user listens on '", path, "': this process runs as user ",
                                                  geteuid(), ", and only processes of one user can share a dock"));
}

bool IsOwnUser(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == geteuid() || peer.uid == 0;
}

}  // namespace tdock::net
