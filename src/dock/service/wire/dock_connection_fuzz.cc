// Whatever a client sends, with or without a hello: the server reads it to its end or says goodbye, and its dock goes
// on.
//
// An input is the bytes that a client sends, behind one byte: bit 0 says that a right hello goes before them, and bit 1
// that they go over TCP.
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/net/endpoint.h"
#include "dock/service/wire/testing/serve.h"

namespace tdock::service {
namespace {

// A dock with a partition and a consumer, that lives as long as the fuzzer.
class Fixture {
 public:
  explicit Fixture(Over over) : server_(over, {}, {.upload_slots = 2}) {
    const PartitionOptions partition{
        .name = "p", .columns = {{"a", ColumnType::Dense(DType::kF32)}, {"text", {}}}, .max_bytes = 1 << 20};
    if (!server_.dock->CreatePartition(partition).ok()) std::abort();
    if (!server_.dock->RegisterConsumer("p", {.name = "c", .reads = {"a"}}).ok()) std::abort();
  }

  void Try(bool hello, const std::string& bytes) {
    const absl::Time deadline = absl::Now() + absl::Seconds(5);
    const std::string address = server_.address().address;
    auto socket = server_.over == Over::kUnix ? net::ConnectToPath(server_.path(), deadline)
                                              : net::ConnectTo(*net::ParseEndpoint(address, "it"), deadline);
    if (!socket.ok()) std::abort();
    std::string all;
    if (hello) {
      const net::Hello right{.rest = Serialize(message::Hello{})};
      all = net::MessageOf(net::kHello, 0, Encode(right));
    }
    all += bytes;
    Send((*socket)->fd(), all);
    shutdown((*socket)->fd(), SHUT_WR);
    AwaitEnd((*socket)->fd());
    if (!server_.dock->ListPartitions().ok()) std::abort();
  }

 private:
  // Waits for something of these to happen, which is soon.
  static short Await(int fd, short events) {
    pollfd watched{.fd = fd, .events = events, .revents = 0};
    constexpr int kPatienceMs = 5000;
    int count = -1;
    // libFuzzer's alarms interrupt it.
    do count = poll(&watched, 1, kPatienceMs);
    while (count < 0 && errno == EINTR);
    if (count <= 0) std::abort();  // the server neither reads nor hangs up
    return watched.revents;
  }
  // Reads what is there; false at the end.
  static bool Read(int fd) {
    std::array<char, 4096> bytes;
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), 0);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
  }
  // All of the bytes, unless the server hangs up before.
  static void Send(int fd, const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const short events = Await(fd, POLLIN | POLLOUT);
      if ((events & (POLLIN | POLLHUP)) != 0 && !Read(fd)) return;
      if ((events & POLLOUT) == 0) continue;
      const ssize_t step = send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (step < 0) return;
      sent += static_cast<size_t>(step);
    }
  }
  static void AwaitEnd(int fd) {
    do {
      Await(fd, POLLIN);
    } while (Read(fd));
  }

  TestServer server_;
};

}  // namespace
}  // namespace tdock::service

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tdock::service::Over;
  static auto* const local = new tdock::service::Fixture(Over::kUnix);
  static auto* const remote = new tdock::service::Fixture(Over::kTcp);
  if (size == 0) return 0;
  auto* const fixture = (data[0] & 2) == 0 ? local : remote;
  fixture->Try((data[0] & 1) != 0, std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
