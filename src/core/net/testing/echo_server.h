// For tests: a server that answers with what it is told.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/net/credentials.h"
#include "core/net/message.h"
#include "core/net/server.h"

namespace tdock::net {

inline constexpr uint8_t kEcho = 40;  // comes back
inline constexpr uint8_t kFill = 41;  // u64: comes back, and behind it so many bytes of data
inline constexpr uint32_t kMaxEchoBytes = 1 << 20;

// Counts of an echo server. Thread-safe.
struct Seen {
  std::atomic<int64_t> hellos = 0, messages = 0, data_bytes = 0, closed = 0;
};

class Echo final : public Handler {
 public:
  Echo(std::weak_ptr<Connection> connection, Seen& seen) : connection_(std::move(connection)), seen_(seen) {}

  uint32_t MaxBytes(uint8_t type) const override { return type == kEcho || type == kFill ? kMaxEchoBytes : 0; }
  absl::Status OnMessage(const MessageHeader& header, absl::string_view body) override {
    ++seen_.messages;
    const std::shared_ptr<Connection> connection = connection_.lock();
    if (header.type == kEcho) {
      connection->Send(net::MessageOf(kEcho, header.tag, body));
      return absl::OkStatus();
    }
    if (body.size() != sizeof(uint64_t)) return absl::InvalidArgumentError("a fill without its number");
    const auto bytes = std::make_shared<const std::string>(NumberAt<uint64_t>(body, 0), 'f');
    connection->SendData(net::MessageOf(kFill, header.tag, body), header.tag, {AsBytes(*bytes)}, bytes);
    return absl::OkStatus();
  }
  absl::Status OnData(uint64_t, uint64_t, std::span<const std::byte> bytes) override {
    seen_.data_bytes += static_cast<int64_t>(bytes.size());
    return absl::OkStatus();
  }
  void OnClosed(const absl::Status&) override { ++seen_.closed; }

 private:
  const std::weak_ptr<Connection> connection_;
  Seen& seen_;
};

// The body of its welcome is "welcome" and the rest of the hello; a rest "go away" is refused.
class EchoServer {
 public:
  explicit EchoServer(ServerOptions options = {}) {
    options.welcome = [this](const std::shared_ptr<Connection>& connection,
                             absl::string_view rest) -> absl::StatusOr<Welcome> {
      if (rest == "go away") return absl::ResourceExhaustedError("there is no room for such a client");
      ++seen.hellos;
      return Welcome{.handler = std::make_unique<Echo>(connection, seen), .body = absl::StrCat("welcome", rest)};
    };
    server = Server::Make(options).value();
  }
  // The same, which listens on a free port.
  explicit EchoServer(const CredentialFiles& credentials, const ServerOptions& options = {}) : EchoServer(options) {
    EXPECT_EQ(server->ListenOnTcp({.credentials = credentials}), absl::OkStatus());
  }
  const std::string& address() const { return server->tcp_address(); }

  Seen seen;
  std::unique_ptr<Server> server;
};

inline std::string HelloMessage(const Hello& hello) { return MessageOf(kHello, 0, Encode(hello)); }

}  // namespace tdock::net
