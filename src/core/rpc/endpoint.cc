#include "core/rpc/endpoint.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::rpc {
namespace {

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
  Socket made(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.valid()) return errno;
  const int on = 1, off = 0;
  setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.ss_family == AF_INET6) setsockopt(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  PortOf(address) = htons(static_cast<uint16_t>(listening.port));
  if (bind(made.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) return errno;
  if (listen(made.get(), SOMAXCONN) != 0) return errno;
  if (getsockname(made.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return errno;
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
  constexpr int kMostTries = 10;
  int error = 0;
  for (int tries = 0; tries < (endpoint.port == 0 ? kMostTries : 1); ++tries) {
    ListeningSockets listening;
    error = ListenOnAll(*addresses, endpoint.port, listening);
    if (error == 0) return listening;
    if (error != EADDRINUSE) break;
  }
  return absl::UnavailableError(absl::StrCat("cannot listen on ", endpoint.ToString(), ": ", strerror(error)));
}

}  // namespace tdock::rpc
