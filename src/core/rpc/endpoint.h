// Addresses of TCP.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/rpc/socket.h"

namespace tdock::rpc {

struct Endpoint {
  std::string host;  // a name or an address, without brackets
  int port = 0;

  // "host:port", with brackets around an IPv6 address.
  std::string ToString() const;
};

// From "host:port" or "[host]:port"; `what` names it in errors. Port 0 is allowed.
absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text, absl::string_view what);

// Whether every address that the host stands for belongs to the loopback interface. Asks the resolver, which can block
// for seconds. NotFound if the host stands for none.
absl::StatusOr<bool> IsLoopback(const Endpoint& endpoint);

// Sockets that listen and do not block, one for each address that the host stands for, all on the same port.
struct ListeningSockets {
  std::vector<Socket> sockets;
  int port = 0;
};

// Port 0 takes one that is free. The address of all interfaces, of either family, stands for both families.
// Unavailable: another listens there, or the host is not this machine; an address of a family that the machine lacks is
// left out if the host has another.
absl::StatusOr<ListeningSockets> ListenOn(const Endpoint& endpoint);

}  // namespace tdock::rpc
