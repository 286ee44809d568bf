#include "core/rpc/forked.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::rpc {
namespace {

// What an epoll set watches, according to /proc/self/fdinfo.
struct Watched {
  int fd = -1;
  uint32_t events = 0;
  uint64_t data = 0;
};

std::vector<int> PollSets() {
  std::vector<int> sets;
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return sets;
  while (const dirent* const entry = readdir(folder)) {
    std::array<char, 64> link{};
    if (readlinkat(dirfd(folder), entry->d_name, link.data(), link.size() - 1) <= 0) continue;
    int fd = -1;
    const bool is_number =
        std::from_chars(entry->d_name, entry->d_name + std::strlen(entry->d_name), fd).ec == std::errc();
    if (is_number && std::strcmp(link.data(), "anon_inode:[eventpoll]") == 0) sets.push_back(fd);
  }
  closedir(folder);
  return sets;
}

std::vector<Watched> WatchedBy(int set) {
  std::vector<Watched> all;
  std::ifstream lines(absl::StrCat("/proc/self/fdinfo/", set));
  for (std::string line; std::getline(lines, line);) {
    Watched one;
    if (std::sscanf(line.c_str(), "tfd: %d events: %" SCNx32 " data: %" SCNx64, &one.fd, &one.events, &one.data) == 3) {
      all.push_back(one);
    }
  }
  return all;
}

// gRPC's set watches an event whose data is the address of a variable of the library.
bool IsOfGrpc(const std::vector<Watched>& watched) {
  for (const Watched& one : watched) {
    Dl_info info{};
    if (dladdr(reinterpret_cast<const void*>(one.data), &info) == 0 || info.dli_fname == nullptr) continue;
    if (absl::StrContains(info.dli_fname, "libgrpc")) return true;
  }
  return false;
}

// Replaces `fd` by `made`.
absl::Status Replace(int made, int fd) {
  if (made < 0 || dup3(made, fd, O_CLOEXEC) < 0) return absl::ErrnoToStatus(errno, "cannot replace a file of gRPC's");
  close(made);
  return absl::OkStatus();
}

}  // namespace

absl::Status TakeOwnPollSet() {
  for (const int set : PollSets()) {
    const std::vector<Watched> watched = WatchedBy(set);
    if (!IsOfGrpc(watched)) continue;
    TDOCK_RETURN_IF_ERROR(Replace(epoll_create1(EPOLL_CLOEXEC), set));
    // Without connections, it only watches the events by which its threads wake each other.
    for (const Watched& one : watched) {
      TDOCK_RETURN_IF_ERROR(Replace(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), one.fd));
      epoll_event event{.events = one.events, .data = {.u64 = one.data}};
      if (epoll_ctl(set, EPOLL_CTL_ADD, one.fd, &event) != 0) {
        return absl::ErrnoToStatus(errno, "cannot watch an event of gRPC's");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace tdock::rpc
