// Addresses of TCP.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

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

// Why nobody can listen there, as Unavailable; OK if one can.
absl::Status TryToListen(const Endpoint& endpoint);

}  // namespace tdock::rpc
