// Bytes on the port that are no calls.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/rng.h"
#include "rpc/testing.h"

namespace tdock::rpc {
namespace {

class RawConnection {
 public:
  explicit RawConnection(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawConnection() { close(fd_); }

  // As much as the server takes before it hangs up.
  void Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  void EndSending() { shutdown(fd_, SHUT_WR); }
  // Until the server hangs up, or has said nothing for half a second.
  void Drain() {
    const timeval patience = {.tv_sec = 0, .tv_usec = 500'000};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    char buffer[4096];
    while (recv(fd_, buffer, sizeof(buffer), 0) > 0) continue;
  }

 private:
  int fd_;
};

std::string Frame(char type, char flags, char stream, absl::string_view payload) {
  const size_t size = payload.size();
  std::string frame = {static_cast<char>(size >> 16),
                       static_cast<char>(size >> 8),
                       static_cast<char>(size),
                       type,
                       flags,
                       0,
                       0,
                       0,
                       stream};
  absl::StrAppend(&frame, payload);
  return frame;
}

std::string Header(absl::string_view name, absl::string_view value) {
  // A literal field without indexing and without Huffman coding (RFC 7541, 6.2.2).
  std::string field(1, '\0');
  for (const absl::string_view part : {name, value}) {
    field.push_back(static_cast<char>(part.size()));
    absl::StrAppend(&field, part);
  }
  return field;
}

// What a client of gRPC's sends for a call of /count with this in its DATA frame.
std::string CallBytes(absl::string_view data, bool end_stream) {
  return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(4, 0, 0, "") +
         Frame(1, 4, 1,
               Header(":method", "POST") + Header(":scheme", "http") + Header(":path", "/count") +
                   Header(":authority", "x") + Header("te", "trailers") + Header("content-type", "application/grpc")) +
         Frame(0, end_stream ? 1 : 0, 1, data);
}

struct Counting {
  Counter messages, half_closes, gone;

  std::unique_ptr<StreamServer> Start() {
    Methods methods;
    methods["/count"] = [this](std::shared_ptr<CallSink> sink) {
      auto script = std::make_shared<Script>(sink);
      script->on_message = [this](Pieces) { messages.Add(); };
      script->on_half_close = [this, sink] {
        half_closes.Add();
        sink->Finish(absl::OkStatus());
      };
      script->on_gone = [this] { gone.Add(); };
      return script;
    };
    return StartServer(Serve(std::move(methods)));
  }
};

const std::string kMessage("\0\0\0\0\3abc", 8);

TEST(Hostile, TheRawCallOfTheseTestsIsOneThatTheServerTakes) {
  Counting counting;
  const auto server = counting.Start();
  RawConnection raw(server->port());
  raw.Send(CallBytes(kMessage, /*end_stream=*/true));
  EXPECT_TRUE(counting.half_closes.Await(1));
  EXPECT_EQ(counting.messages.count(), 1);
}

TEST(Hostile, ACallThatIsCutAnywhereIsNeverComplete) {
  Counting counting;
  const auto server = counting.Start();
  const std::string whole = CallBytes(kMessage, /*end_stream=*/true);
  int64_t begun = 0;
  for (size_t size = 0; size < whole.size(); ++size) {
    RawConnection raw(server->port());
    raw.Send(absl::string_view(whole).substr(0, size));
    raw.EndSending();
    if (size + kMessage.size() + 9 >= whole.size()) ++begun;
  }
  // From the end of the HEADERS frame on, there is a call that must end.
  EXPECT_TRUE(counting.gone.Await(begun));
  EXPECT_EQ(counting.half_closes.count(), 0);
  EXPECT_EQ(Ask(*ConnectTo(server->port()), "/echo", "x").value(), "x");
}

TEST(Hostile, AMessageShorterThanItsPrefixSaysIsNotDelivered) {
  Counting counting;
  const auto server = counting.Start();
  RawConnection raw(server->port());
  raw.Send(CallBytes(kMessage.substr(0, 7), /*end_stream=*/true));
  EXPECT_TRUE(counting.gone.Await(1));
  EXPECT_EQ(counting.messages.count(), 0);
}

TEST(Hostile, AMessageThatClaimsFourGigabytesIsNotDeliveredAndGoesWithItsConnection) {
  Counting counting;
  const auto server = counting.Start();
  {
    RawConnection raw(server->port());
    raw.Send(CallBytes(std::string("\0\xff\xff\xff\xff", 5) + std::string(100, 'x'), /*end_stream=*/false));
    raw.EndSending();
    raw.Drain();
  }
  EXPECT_TRUE(counting.gone.Await(1));
  EXPECT_EQ(counting.messages.count(), 0);
  EXPECT_EQ(counting.half_closes.count(), 0);
}

TEST(Hostile, GarbageIsHungUpOnAndDisturbsNobody) {
  Counting counting;
  const auto server = counting.Start();
  const auto client = ConnectTo(server->port());
  const auto stream = client->Open(
      "/count", [](Pieces) {}, [](const absl::Status&) {});
  Rng rng(3);
  std::vector<std::string> garbage = {
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
      std::string(1 << 20, '\0'),
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string(100'000, '\xff'),
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(4, 0, 0, "") + Frame(1, 4, 1, std::string(16'000, '\x7f')),
  };
  const std::string whole = CallBytes(kMessage, true);
  for (int i = 0; i < 200; ++i) {
    std::string bytes = whole;
    for (int j = 0; j < 3; ++j) bytes[24 + rng.Below(bytes.size() - 24)] = static_cast<char>(rng.Next());
    garbage.push_back(bytes);
  }
  for (const std::string& bytes : garbage) {
    RawConnection raw(server->port());
    raw.Send(bytes);
    raw.EndSending();
  }
  RawConnection silent(server->port());
  RawConnection listening(server->port());
  listening.Send(garbage[0]);
  listening.Drain();
  EXPECT_EQ(Ask(*client, "/echo", "x").value(), "x");
  EXPECT_TRUE(stream->Send({Bytes("as well")}));
}

}  // namespace
}  // namespace tdock::rpc
