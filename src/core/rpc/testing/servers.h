// Servers, handlers and waits for the tests of this module.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/testing/patience.h"
#include "core/rpc/stream_client.h"
#include "core/rpc/stream_server.h"

namespace tdock::rpc {

// A counter; waiting for a count that is not reached fails the test. Thread-safe.
class Counter {
 public:
  void Add(int64_t by = 1) {
    MutexLock lock(mu_);
    count_ += by;
    changed_.NotifyAll();
  }
  int64_t count() const {
    MutexLock lock(mu_);
    return count_;
  }
  // Whether the count is reached within the time.
  [[nodiscard]] bool Await(int64_t count, absl::Duration timeout = kPatience) {
    const absl::Time deadline = Clock::Real().Now() + timeout;
    MutexLock lock(mu_);
    while (count_ < count && Clock::Real().Now() < deadline) Clock::Real().Wait(changed_, mu_, deadline);
    return count_ >= count;
  }

 private:
  mutable Mutex mu_;
  CondVar changed_;
  int64_t count_ TDOCK_GUARDED_BY(mu_) = 0;
};

inline std::string Text(Pieces pieces) {
  std::string text;
  for (std::span<const std::byte> piece : pieces)
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  return text;
}

inline Buffer Bytes(absl::string_view text) {
  return Buffer::CopyOf({reinterpret_cast<const std::byte*>(text.data()), text.size()});
}

inline Buffer CopyOf(Pieces pieces) {
  Buffer copy = Buffer::Allocate(static_cast<size_t>(SizeOf(pieces)));
  size_t at = 0;
  for (std::span<const std::byte> piece : pieces) {
    std::memcpy(copy.mutable_data() + at, piece.data(), piece.size());
    at += piece.size();
  }
  return copy;
}

// The callbacks of a test for a call; those not set do nothing.
struct Script final : CallHandler {
  explicit Script(std::shared_ptr<CallSink> call_sink) : sink(std::move(call_sink)) {}

  void OnMessage(Pieces message) override {
    if (on_message) on_message(message);
  }
  void OnHalfClose() override {
    if (on_half_close) on_half_close();
  }
  void OnSent() override {
    if (on_sent) on_sent();
  }
  void OnGone() override {
    if (on_gone) on_gone();
  }

  const std::shared_ptr<CallSink> sink;
  std::function<void(Pieces)> on_message;
  std::function<void()> on_half_close, on_sent, on_gone;
};

// Echoes each message, and stops reading while many responses are queued.
inline std::shared_ptr<Script> MakeEcho(const std::shared_ptr<CallSink>& sink) {
  auto echo = std::make_shared<Script>(sink);
  echo->on_message = [sink](Pieces message) {
    sink->Send({CopyOf(message)});
    if (sink->queued_bytes() > 8 << 20) sink->PauseReads();
  };
  echo->on_sent = [sink] {
    if (sink->queued_bytes() < 4 << 20) sink->ResumeReads();
  };
  echo->on_half_close = [sink] { sink->Finish(absl::OkStatus()); };
  return echo;
}

using Methods = std::map<std::string, std::function<std::shared_ptr<CallHandler>(std::shared_ptr<CallSink>)>>;

// "/echo", and the methods of the test.
inline HandlerFactory Serve(Methods methods = {}) {
  methods.try_emplace("/echo", MakeEcho);
  return [methods = std::move(methods)](
             absl::string_view method, std::shared_ptr<CallSink> sink) -> absl::StatusOr<std::shared_ptr<CallHandler>> {
    const auto found = methods.find(std::string(method));
    if (found == methods.end()) return absl::UnimplementedError(absl::StrCat("no method ", method));
    return found->second(std::move(sink));
  };
}

inline std::unique_ptr<StreamServer> StartServer(HandlerFactory factory, const StreamServerOptions& options = {}) {
  auto server = StreamServer::Start(options, std::move(factory));
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

inline std::unique_ptr<StreamClient> ConnectTo(int port, StreamClientOptions options = {}) {
  options.target = absl::StrCat("127.0.0.1:", port);
  options.connect_timeout = kPatience;
  auto client = StreamClient::Connect(options);
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

inline absl::Time Soon(absl::Duration in = kPatience) { return Clock::Real().Now() + in; }

inline absl::Status Ignore(Pieces) { return absl::OkStatus(); }

// One message there, all answers back.
inline absl::StatusOr<std::string> Ask(StreamClient& client, absl::string_view method, absl::string_view question,
                                       absl::Time deadline = Soon()) {
  const Message messages[] = {{Bytes(question)}};
  std::string answer;
  const CallResult result = client.Call(
      method, messages,
      [&](Pieces message) {
        answer += Text(message);
        return absl::OkStatus();
      },
      deadline);
  if (!result.status.ok()) return result.status;
  return answer;
}

}  // namespace tdock::rpc
