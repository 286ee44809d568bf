#include "cutter.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/net/endpoint.h"

namespace tdock::fault {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

template <class Address>
const sockaddr* AsAddress(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

// Ends a connection of TCP with a reset: the other side gets nothing that it has not read.
void Break(int fd) {
  const linger hard{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
  close(fd);
}

bool SendAll(int fd, const char* bytes, size_t size, msghdr& with) {
  while (size > 0) {
    iovec piece{const_cast<char*>(bytes), size};
    with.msg_iov = &piece;
    with.msg_iovlen = 1;
    const ssize_t sent = sendmsg(fd, &with, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes += sent;
    size -= static_cast<size_t>(sent);
    // Descriptors go with the first byte.
    with.msg_control = nullptr;
    with.msg_controllen = 0;
  }
  return true;
}

}  // namespace

struct Cutter::Link {
  int client;
  int server;
};

absl::StatusOr<std::unique_ptr<Cutter>> Cutter::Start(const std::string& upstream) {
  std::unique_ptr<Cutter> cutter(new Cutter());
  cutter->upstream_ = upstream;
  if (absl::StartsWith(upstream, "unix:")) {
    std::string folder = "/tmp/tdock-XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) return absl::ErrnoToStatus(errno, "mkdtemp");
    cutter->folder_ = folder;
    cutter->address_ = absl::StrCat("unix:", folder, "/cut.sock");
    TDOCK_ASSIGN_OR_RETURN(const sockaddr_un address, net::UnixAddress(folder + "/cut.sock"));
    cutter->listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(cutter->listener_, AsAddress(address), sizeof(address)) != 0) return absl::ErrnoToStatus(errno, "bind");
  } else {
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof(address);
    cutter->listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(cutter->listener_, AsAddress(address), size) != 0) return absl::ErrnoToStatus(errno, "bind");
    getsockname(cutter->listener_, reinterpret_cast<sockaddr*>(&address), &size);
    cutter->address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  if (listen(cutter->listener_, 128) != 0 || pipe2(cutter->wake_, O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, "listen");
  }
  cutter->thread_ = std::thread([cutter = cutter.get()] { cutter->Run(); });
  return cutter;
}

Cutter::~Cutter() {
  if (thread_.joinable()) {
    close(wake_[1]);
    thread_.join();
    close(wake_[0]);
  }
  for (const Link& link : links_) close(link.client), close(link.server);
  close(listener_);
  if (folder_.empty()) return;
  unlink((folder_ + "/cut.sock").c_str());
  rmdir(folder_.c_str());
}

void Cutter::CutAfter(bool to_server, int64_t bytes) {
  left_[to_server ? 0 : 1] = INT64_MAX;
  left_[to_server ? 1 : 0] = bytes;
}

absl::StatusOr<int> Cutter::Dial() const {
  absl::string_view path = upstream_;
  if (absl::ConsumePrefix(&path, "unix:")) {
    TDOCK_ASSIGN_OR_RETURN(const sockaddr_un address, net::UnixAddress(std::string(path)));
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, AsAddress(address), sizeof(address)) == 0) return fd;
    close(fd);
    return absl::UnavailableError("no server");
  }
  int port = 0;
  if (!absl::SimpleAtoi(upstream_.substr(upstream_.rfind(':') + 1), &port))
    return absl::InvalidArgumentError(upstream_);
  const sockaddr_in address = Loopback(port);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (connect(fd, AsAddress(address), sizeof(address)) == 0) return fd;
  close(fd);
  return absl::UnavailableError("no server");
}

void Cutter::Accept() {
  const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (client < 0) return;
  const absl::StatusOr<int> server = Dial();
  if (!server.ok()) return Break(client);
  const int on = 1;
  setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  links_.push_back({client, *server});
}

bool Cutter::Forward(Link& link, bool to_server) {
  const int from = to_server ? link.client : link.server, to = to_server ? link.server : link.client;
  std::array<char, 64 << 10> bytes;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(16 * sizeof(int))> control;
  iovec piece{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = recvmsg(from, &message, MSG_CMSG_CLOEXEC);
  if (got <= 0) return got < 0 && errno == EINTR;
  std::vector<int> files;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    files.resize((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(files.data(), CMSG_DATA(header), files.size() * sizeof(int));
  }
  std::atomic<int64_t>& left = left_[to_server ? 1 : 0];
  const int64_t before = left == INT64_MAX ? INT64_MAX : left.fetch_sub(got);
  const bool cut = before < got;
  const size_t pass = static_cast<size_t>(cut ? std::max<int64_t>(before, 0) : got);
  const bool sent = SendAll(to, bytes.data(), pass, message);
  for (int fd : files) close(fd);
  if (!cut) return sent;
  left = INT64_MAX;
  ++cuts_;
  return false;
}

void Cutter::Run() {
  for (;;) {
    std::vector<pollfd> watched = {{.fd = wake_[0], .events = POLLIN, .revents = 0},
                                   {.fd = listener_, .events = POLLIN, .revents = 0}};
    for (const Link& link : links_) {
      watched.push_back({.fd = link.client, .events = POLLIN, .revents = 0});
      watched.push_back({.fd = link.server, .events = POLLIN, .revents = 0});
    }
    if (poll(watched.data(), watched.size(), -1) < 0) continue;
    if (watched[0].revents != 0) return;
    size_t at = 2;
    for (auto link = links_.begin(); link != links_.end() && at < watched.size(); at += 2) {
      const bool stays =
          (watched[at].revents == 0 || Forward(*link, true)) && (watched[at + 1].revents == 0 || Forward(*link, false));
      if (stays) {
        ++link;
        continue;
      }
      Break(link->client);
      Break(link->server);
      link = links_.erase(link);
    }
    if (watched[1].revents != 0) Accept();
  }
}

}  // namespace tdock::fault
