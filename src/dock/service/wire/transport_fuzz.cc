// Whatever a server sends, a client's calls come to an end, with an error or without, and read no byte that is not
// there.
//
// The first byte says how: bit 0, that a right welcome goes before the other bytes; bit 1, that they go over TCP; and
// the rest, how many descriptors come with them.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "core/net/endpoint.h"
#include "dock/service/wire/messages.h"
#include "dock/service/wire/rows_codec.h"
#include "dock/service/wire/testing/serve.h"
#include "tdock/verbs.h"

namespace tdock::service {
namespace {

constexpr uint32_t kSlots = 2, kSlotBytes = 4096;
// As in tests/wire/golden.
constexpr uint64_t kFirstCall = 5;

// Listens at both kinds of addresses.
class Listener {
 public:
  Listener() : local_(*net::ListenOnPath(path())), tcp_(*net::ListenOn({"127.0.0.1", 0})) {
    for (const int fd : {local_->fd(), tcp_.sockets[0]->fd()}) fcntl(fd, F_SETFL, 0);
  }
  std::string path() const { return folder_.File("fuzz.sock"); }
  std::string Address(bool remote) const {
    return remote ? net::Endpoint{"127.0.0.1", tcp_.port}.ToString() : "unix:" + path();
  }
  int Accept(bool remote) const { return accept4(Socket(remote), nullptr, nullptr, SOCK_CLOEXEC); }
  // Those that have connected and were not accepted.
  void SendAllAway(bool remote) const {
    for (pollfd watched{.fd = Socket(remote), .events = POLLIN, .revents = 0}; poll(&watched, 1, 0) > 0;) {
      close(Accept(remote));
    }
  }

 private:
  int Socket(bool remote) const { return remote ? tcp_.sockets[0]->fd() : local_->fd(); }

  ScratchFolder folder_;
  const std::unique_ptr<FileDescriptor> local_;
  const net::ListeningSockets tcp_;
};

void SendWithFiles(int fd, int file, int files, const std::string& bytes) {
  iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(64 * sizeof(int))> control{};
  if (files > 0) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(static_cast<size_t>(files) * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(static_cast<size_t>(files) * sizeof(int));
    for (int i = 0; i < files; ++i) {
      std::memcpy(CMSG_DATA(rights) + static_cast<size_t>(i) * sizeof(int), &file, sizeof(file));
    }
  }
  sendmsg(fd, &message, MSG_NOSIGNAL);
}

// Looks at every byte of the rows, for the sanitizer.
void Look(ClientAnswer& answer) {
  const message::Rows* const message = RowsIn(answer.reply);
  if (!answer.status.ok() || message == nullptr) return;
  const absl::StatusOr<Rows> rows = Decode(*message, std::move(answer.cells));
  if (!rows.ok()) return;
  uint64_t sum = 0;
  for (size_t column = 0; column < rows->columns().size(); ++column) {
    for (size_t row = 0; row < rows->size(); ++row) {
      for (std::byte byte : rows->cell(row, column).bytes) sum += static_cast<uint8_t>(byte);
    }
  }
  if (sum == ~uint64_t{0}) std::abort();  // no input is long enough
}

void CallTwice(Transport& transport, absl::Time deadline) {
  const absl::StatusOr<message::Welcome> welcome = transport.Connect({}, deadline);
  if (!welcome.ok()) return;
  Batch batch;
  if (!batch.Add("text", Column::FromStrings(std::vector<std::string>{"some", "texts"})).ok()) std::abort();
  for (uint64_t call = kFirstCall; call < kFirstCall + 2; ++call) {
    const bool puts = call > kFirstCall;
    message::Request request = puts ? RequestOf<verbs::Put>({.partition = "p"}, absl::Now())
                                    : RequestOf<verbs::Fetch>({.partition = "p", .rows = {0}}, absl::Now());
    request.call = call;
    ClientAnswer answer = transport.Call(welcome->session, request, puts ? batch : Batch(), deadline);
    if (absl::IsDeadlineExceeded(answer.status)) std::abort();  // the server has hung up long before
    Look(answer);
  }
}

void Try(const Listener& listener, uint8_t how, std::string bytes) {
  const bool remote = (how & 2) != 0;
  static const auto* const area = new dock::UploadArea(*dock::UploadArea::Make(kSlots, kSlotBytes));
  if ((how & 1) != 0) {
    const message::Welcome welcome{.session = "0123456789abcdef",
                                   .instance = 7,
                                   .upload_slots = remote ? 0 : kSlots,
                                   .upload_slot_bytes = remote ? 0 : kSlotBytes};
    bytes.insert(0, net::MessageOf(net::kWelcome, 0, Serialize(welcome)));
  }
  std::atomic<bool> over = false;
  std::thread server([&] {
    const int fd = listener.Accept(remote);
    SendWithFiles(fd, area->file()->fd(), remote ? 0 : how >> 2, bytes);
    shutdown(fd, SHUT_WR);
    // Whoever comes again is sent away.
    while (!over) close(listener.Accept(remote));
    close(fd);
  });
  const absl::Time deadline = absl::Now() + absl::Seconds(5);
  {
    Transport transport({.address = listener.Address(remote)});
    CallTwice(transport, deadline);
  }
  over = true;
  const auto last = remote ? net::ConnectTo(*net::ParseEndpoint(listener.Address(true), "it"), deadline)
                           : net::ConnectToPath(listener.path(), deadline);
  server.join();
  listener.SendAllAway(remote);
}

}  // namespace
}  // namespace tdock::service

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const listener = new tdock::service::Listener();
  if (size < 2) return 0;
  tdock::service::Try(*listener, data[0], std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
