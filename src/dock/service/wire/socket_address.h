// The path of a Unix socket as an address.
#pragma once

#include <sys/un.h>

#include <cstring>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"

namespace tdock::service {

inline absl::StatusOr<sockaddr_un> SocketAddress(const std::string& path) {
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

}  // namespace tdock::service
