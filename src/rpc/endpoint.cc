#include "rpc/endpoint.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"

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
    return absl::NotFoundError(absl::StrCat("host '", endpoint.host, "' has no address: ", gai_strerror(error)));
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

absl::Status TryToListen(const Endpoint& endpoint) {
  TDOCK_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(endpoint));
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int error = fd < 0 ? errno : 0;
    if (fd >= 0) {
      const int on = 1;
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
      if (bind(fd, at->ai_addr, at->ai_addrlen) != 0 || listen(fd, 1) != 0) error = errno;
      close(fd);
    }
    if (error != 0) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", endpoint.ToString(), ": ", strerror(error)));
    }
  }
  return absl::OkStatus();
}

}  // namespace tdock::rpc
