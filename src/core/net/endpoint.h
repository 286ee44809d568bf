// Addresses, and sockets that listen on them or are connected to them.
#pragma once

#include <sys/un.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/file_descriptor.h"

namespace tdock::net {

struct Endpoint {
  std::string host;  // a name or an address, without brackets
  int port = 0;

  // "host:port", with brackets around an IPv6 address.
  std::string ToString() const;
};

// Parses "host:port" or "[host]:port"; `what` names it in errors. Port 0 is allowed.
absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text, absl::string_view what);

// True if every address that the host resolves to belongs to the loopback interface. Calls the resolver, which can
// block for seconds. NotFound if the host has no address.
absl::StatusOr<bool> IsLoopback(const Endpoint& endpoint);

// Listening, non-blocking sockets, one for each address of the host, all on the same port.
struct ListeningSockets {
  std::vector<std::unique_ptr<FileDescriptor>> sockets;
  int port = 0;
};

// Port 0 picks a free one. The wildcard address of either family stands for both families. Unavailable: another process
// listens there, or the host is not this machine; an address of a family that the machine lacks is skipped if the host
// has another.
absl::StatusOr<ListeningSockets> ListenOn(const Endpoint& endpoint);

// A connected, non-blocking socket, by the deadline of absl::Now(). Unavailable if nobody listens there.
absl::StatusOr<std::unique_ptr<FileDescriptor>> ConnectTo(const Endpoint& endpoint, absl::Time deadline);

// Sets what both ends of a connection need: bytes go at once, and a machine that is gone is noticed after 20 seconds.
void TuneTcp(int fd);

// ---- Unix sockets, by their paths.

// InvalidArgument for a path that is too long.
absl::StatusOr<sockaddr_un> UnixAddress(const std::string& path);

// A listening, non-blocking socket, which only this user may connect to. Replaces the socket of a server that is gone.
// InvalidArgument for a path that is too long, AlreadyExists if another file is there or another server listens; other
// errors are the system's, and name the path.
absl::StatusOr<std::unique_ptr<FileDescriptor>> ListenOnPath(const std::string& path);
// Unavailable if nobody listens there, PermissionDenied if another user than this one or root does.
absl::StatusOr<std::unique_ptr<FileDescriptor>> ConnectToPath(const std::string& path, absl::Time deadline);
// True if the other side of a connected socket is this user, or root, who may read this process's memory anyway.
bool IsOwnUser(int fd);

}  // namespace tdock::net
