// TCP addresses.
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

// Parses "host:port" or "[host]:port"; `what` names it in errors. Port 0 is allowed.
absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text, absl::string_view what);

// Whether every address that the host resolves to belongs to the loopback interface. Calls the resolver, which can
// block for seconds. NotFound if the host has no address.
absl::StatusOr<bool> IsLoopback(const Endpoint& endpoint);

// Listening, non-blocking sockets, one for each address of the host, all on the same port.
struct ListeningSockets {
  std::vector<Socket> sockets;
  int port = 0;
};

// Port 0 picks a free one. The wildcard address of either family stands for both families. Unavailable: another process
// listens there, or the host is not this machine; an address of a family that the machine lacks is skipped if the host
// has another.
absl::StatusOr<ListeningSockets> ListenOn(const Endpoint& endpoint);

}  // namespace tdock::rpc
