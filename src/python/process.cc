#include "python/process.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tdock::python {
namespace {

std::vector<int> OpenDescriptors() {
  std::vector<int> all;
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return all;
  while (const dirent* const entry = readdir(folder)) {
    int fd = -1;
    const char* const end = entry->d_name + std::strlen(entry->d_name);
    if (std::from_chars(entry->d_name, end, fd).ptr == end && fd != dirfd(folder)) all.push_back(fd);
  }
  closedir(folder);
  return all;
}

// In the form of dock addresses; empty for anything but sockets.
std::string AddressOf(const sockaddr_storage& storage, socklen_t size) {
  if (storage.ss_family == AF_UNIX && size > offsetof(sockaddr_un, sun_path)) {
    return absl::StrCat("unix:", reinterpret_cast<const sockaddr_un&>(storage).sun_path);
  }
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return absl::StrCat(text.data(), ":", ntohs(v4.sin_port));
  }
  if (storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
    // IPv4 over IPv6 is the same address.
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr);
    inet_ntop(mapped ? AF_INET : AF_INET6, mapped ? v6.sin6_addr.s6_addr + 12 : v6.sin6_addr.s6_addr, text.data(),
              text.size());
    return mapped ? absl::StrCat(text.data(), ":", ntohs(v6.sin6_port))
                  : absl::StrCat("[", text.data(), "]:", ntohs(v6.sin6_port));
  }
  return "";
}

}  // namespace

void CloseInheritedSockets(const std::set<std::string>& addresses) {
  for (const int fd : OpenDescriptors()) {
    for (const auto& ask : {&getsockname, &getpeername}) {
      sockaddr_storage storage{};
      socklen_t size = sizeof(storage);
      if ((*ask)(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) continue;
      if (!addresses.contains(AddressOf(storage, size))) continue;
      close(fd);
      break;
    }
  }
}

bool IsMainThread() { return getpid() == gettid(); }

}  // namespace tdock::python
