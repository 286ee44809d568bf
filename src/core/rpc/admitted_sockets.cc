#include "core/rpc/admitted_sockets.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <optional>

#include "core/rpc/socket.h"

namespace tdock::rpc {
namespace {

std::optional<uint64_t> CookieOf(int fd) {
  uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  if (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) != 0) return std::nullopt;
  return cookie;
}

}  // namespace

void AdmittedSockets::Add(int fd) {
  const std::optional<uint64_t> cookie = CookieOf(fd);
  if (!cookie.has_value()) return;
  MutexLock lock(mu_);
  cookies_[fd] = *cookie;
}

void AdmittedSockets::CutAll() {
  absl::flat_hash_map<int, uint64_t> cookies;
  {
    MutexLock lock(mu_);
    cookies = cookies_;
  }
  for (const auto& [fd, cookie] : cookies) {
    // A duplicate stays valid if the descriptor is closed meanwhile.
    const Socket copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (copy.valid() && CookieOf(copy.get()) == cookie) shutdown(copy.get(), SHUT_RDWR);
  }
}

}  // namespace tdock::rpc
