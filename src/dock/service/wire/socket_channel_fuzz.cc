// Whatever a server sends over the socket, a client reads it to its end, with an error or without.
//
// The first byte says how many descriptors come with what follows.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "dock/service/wire/socket_address.h"
#include "dock/service/wire/socket_channel.h"
#include "dock/service/wire/testing/serve.h"

namespace tdock::service {
namespace {

class Listener {
 public:
  Listener() : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_un address = *SocketAddress(path());
    if (bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 || listen(fd_, 1) != 0) {
      std::abort();
    }
  }
  std::string path() const { return folder_.File("fuzz.sock"); }
  int Accept() const { return accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); }

 private:
  ScratchFolder folder_;
  const int fd_;
};

// What fits into the socket's buffer, which is all that an input of libFuzzer's has.
void SendWithFiles(int fd, int files, const std::string& bytes) {
  iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control{};
  if (files > 0) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(static_cast<size_t>(files) * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(static_cast<size_t>(files) * sizeof(int));
    for (int i = 0; i < files; ++i) {
      std::memcpy(CMSG_DATA(rights) + static_cast<size_t>(i) * sizeof(int), &fd, sizeof(fd));
    }
  }
  sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Try(const Listener& listener, int files, const std::string& bytes) {
  const absl::Time deadline = absl::Now() + absl::Seconds(5);
  const absl::StatusOr<std::unique_ptr<SocketChannel>> channel = SocketChannel::Connect(listener.path(), deadline);
  if (!channel.ok()) std::abort();
  const int server = listener.Accept();
  SendWithFiles(server, files, bytes);
  shutdown(server, SHUT_WR);
  absl::Status end;
  while (end.ok()) end = (*channel)->Receive(deadline).status();
  if (absl::IsDeadlineExceeded(end) && absl::Now() >= deadline) std::abort();
  close(server);
}

}  // namespace
}  // namespace tdock::service

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const listener = new tdock::service::Listener();
  if (size < 2) return 0;
  tdock::service::Try(*listener, data[0] % 9, std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
