// Whatever a client sends over the socket, with or without a hello, in whatever pieces: the server reads it to its end
// or says goodbye, and its dock goes on.
//
// An input is the bytes that a client sends, behind one byte: bit 0 says that a hello of the server's own making goes
// before them.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <string>

#include "dock/service/wire/socket_connection.h"
#include "dock/service/wire/testing/serve.h"

namespace tdock::service {
namespace {

// A dock with a partition, a consumer and a row, that lives as long as the fuzzer.
class Fixture {
 public:
  Fixture() : loop_(*EventLoop::Make()) {
    const PartitionOptions partition{
        .name = "p", .columns = {{"a", ColumnType::Dense(DType::kF32)}, {"text", {}}}, .max_bytes = 1 << 20};
    if (!service_.dock->CreatePartition(partition).ok()) std::abort();
    if (!service_.dock->RegisterConsumer("p", {.name = "c", .reads = {"a"}}).ok()) std::abort();
    loop_->Start();
  }
  ~Fixture() { loop_->Stop(); }

  void Try(bool hello, const std::string& bytes) {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) std::abort();
    auto connection = std::make_shared<SocketConnection>(
        ends[0], loop_, SocketConnection::Shared{service_.service, service_.pool, {.upload_slots = 2}}, [](int) {});
    OnLoop([&] {
      if (!connection->Start().ok()) std::abort();
    });
    std::string all;
    if (hello) all = ControlMessage(SocketMessage::kHello, 0, message::Hello{.protocol = Service::kProtocol});
    all += bytes;
    Send(ends[1], all);
    shutdown(ends[1], SHUT_WR);
    AwaitEnd(ends[1]);
    close(ends[1]);
    OnLoop([&] { connection->Close(absl::OkStatus()); });
    OnLoop([&] { connection.reset(); });
    if (!service_.dock->ListPartitions().ok()) std::abort();
  }

 private:
  void OnLoop(const std::function<void()>& task) {
    std::promise<void> done;
    loop_->Post([&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }

  // Waits for something of these to happen, which is soon.
  static short Await(int fd, short events) {
    pollfd watched{.fd = fd, .events = events, .revents = 0};
    constexpr int kPatienceMs = 5000;
    if (poll(&watched, 1, kPatienceMs) <= 0) std::abort();  // the server neither reads nor hangs up
    return watched.revents;
  }
  // Reads what is there; false at the end.
  static bool Read(int fd) {
    std::array<char, 4096> bytes;
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), 0);
    return got > 0 || (got < 0 && errno == EAGAIN);
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

  TestService service_;
  const std::shared_ptr<EventLoop> loop_;
};

}  // namespace
}  // namespace tdock::service

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* const fixture = new tdock::service::Fixture();
  if (size == 0) return 0;
  fixture->Try((data[0] & 1) != 0, std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
