// For tests: the client's end of a connection, which sends what it likes.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/testing/patience.h"
#include "core/net/endpoint.h"
#include "core/net/inbox.h"
#include "core/net/stream.h"
#include "core/net/tls.h"

namespace tdock::net {

// A connected socket; a failure of the test if nobody listens. "unix:/path" or "host:port".
inline std::unique_ptr<FileDescriptor> Dial(const std::string& address) {
  absl::string_view path = address;
  const absl::Time deadline = absl::Now() + kPatience;
  auto socket = absl::ConsumePrefix(&path, "unix:") ? ConnectToPath(std::string(path), deadline)
                                                    : ConnectTo(ParseEndpoint(address, "the server").value(), deadline);
  EXPECT_EQ(socket.status(), absl::OkStatus());
  return *std::move(socket);
}

// Not thread-safe.
class RawClient {
 public:
  // Through TLS if there is some. `name`: the host that the server's certificate must be for. `max_bytes`: of messages
  // of each type, where not all may come.
  explicit RawClient(const std::string& address, const std::shared_ptr<const Tls>& tls = nullptr,
                     const std::string& name = "127.0.0.1", uint32_t (*max_bytes)(uint8_t type) = nullptr)
      : sink_(max_bytes) {
    std::unique_ptr<FileDescriptor> socket = Dial(address);
    const bool is_local = absl::StartsWith(address, "unix:");
    if (tls == nullptr) {
      stream_ = MakePlainStream(std::move(socket), is_local, is_local);
    } else {
      stream_ = MakeTlsStream(std::move(socket), *tls, name).value();
    }
    for (;;) {
      // If that fails, whatever follows does, too.
      const absl::StatusOr<bool> done = stream_->Handshake();
      if (!done.ok() || *done) break;
      EXPECT_EQ(Await(absl::Now() + kPatience), absl::OkStatus());
    }
  }

  Stream& stream() { return *stream_; }

  // False if the server has ended the connection, or reads nothing for so long.
  bool Send(absl::string_view bytes, absl::Duration within = kPatience) {
    return SendSome(bytes, within) == bytes.size();
  }
  // How many were sent.
  size_t SendSome(absl::string_view bytes, absl::Duration within) {
    size_t sent = 0;
    for (absl::Time deadline = absl::Now() + within; sent < bytes.size();) {
      const iovec piece{const_cast<char*>(bytes.data()) + sent, bytes.size() - sent};
      const absl::StatusOr<size_t> step = stream_->Write({&piece, 1});
      if (!step.ok() || (*step == 0 && !Await(deadline).ok())) break;
      sent += *step;
      if (*step > 0) deadline = absl::Now() + within;
    }
    return sent;
  }

  struct Message {
    MessageHeader header;
    std::string body;
  };
  // The next message other than data, or how the connection ended: with the error of a goodbye, or Unavailable without
  // one. DeadlineExceeded.
  absl::StatusOr<Message> Receive(absl::Duration within = kPatience) {
    const absl::Time deadline = absl::Now() + within;
    for (;;) {
      TDOCK_ASSIGN_OR_RETURN(const std::optional<Inbox::Message> message, inbox_.Next());
      if (message.has_value()) {
        if (message->header.type == kGoodbye) return ReasonIn(message->body);
        return Message{message->header, std::string(message->body)};
      }
      TDOCK_ASSIGN_OR_RETURN(const Inbox::Arrived arrived, inbox_.Read(*stream_));
      if (arrived == Inbox::Arrived::kNothing) TDOCK_RETURN_IF_ERROR(Await(deadline));
    }
  }
  // The bytes of data that have arrived, of all calls.
  uint64_t data_bytes() const { return sink_.bytes; }

 private:
  // Takes all that a server may send.
  struct Sink final : Recipient {
    explicit Sink(uint32_t (*max)(uint8_t)) : max_bytes(max) {}
    uint32_t MaxBytes(uint8_t type) const override { return max_bytes == nullptr ? 64 << 20 : max_bytes(type); }
    absl::Status OnData(uint64_t, uint64_t, std::span<const std::byte> data) override {
      bytes += data.size();
      return absl::OkStatus();
    }
    uint32_t (*const max_bytes)(uint8_t);
    uint64_t bytes = 0;
  };

  // Waits for what the stream waits for.
  absl::Status Await(absl::Time deadline) {
    pollfd watched{.fd = stream_->fd(), .events = stream_->awaits(), .revents = 0};
    const int64_t left_ms = absl::ToInt64Milliseconds(absl::Ceil(deadline - absl::Now(), absl::Milliseconds(1)));
    if (poll(&watched, 1, static_cast<int>(std::max<int64_t>(left_ms, 0))) > 0) return absl::OkStatus();
    return absl::Now() < deadline ? absl::OkStatus() : absl::DeadlineExceededError("the server does nothing");
  }

  std::unique_ptr<Stream> stream_;
  Sink sink_;
  Inbox inbox_{sink_};
};

}  // namespace tdock::net
