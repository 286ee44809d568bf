// Relays between a TLS connection and gRPC, which has one end of a socket pair. For this module only.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/rpc/socket.h"
#include "core/rpc/tls_session.h"

namespace tdock::rpc {

// Buffered bytes of one direction, up to a limit.
class RelayBuffer {
 public:
  // Starts with these bytes; if they exceed the limit, their number becomes the limit.
  explicit RelayBuffer(absl::string_view first);

  bool empty() const { return begin_ == end_; }
  absl::string_view waiting() const { return {bytes_.data() + begin_, end_ - begin_}; }
  void RemovePrefix(size_t bytes);
  // The free space for more bytes; empty if there is none.
  std::span<char> Room();
  void Added(size_t bytes) { end_ += bytes; }

 private:
  std::vector<char> bytes_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

// One connection. If either side ends or breaks, so does the other, after everything sent before. Not thread-safe.
class TlsRelay {
 public:
  enum class Progress {
    kIdle,  // until an event of one of the sockets
    kMore,  // there is more to do at once: other connections have their turn first
    kOver,
  };

  // `received` arrived over the session before.
  TlsRelay(std::unique_ptr<TlsSession> session, absl::string_view received, Socket pair);

  int client() const { return session_->socket().get(); }
  int pair() const { return pair_.get(); }

  // Handles an event of one of the sockets.
  void OnClientEvent(bool broken);
  void OnPairEvent(bool hung_up);
  // Moves available bytes, up to a bound.
  Progress Turn();
  // When gRPC ended the connection; its last bytes may still wait for the client.
  std::optional<std::chrono::steady_clock::time_point> ending_since() const { return ending_since_; }

 private:
  // Each returns whether it has moved anything.
  bool FromClient();
  bool ToPair();
  bool FromPair();
  bool ToClient();

  std::unique_ptr<TlsSession> session_;
  Socket pair_;
  RelayBuffer up_;    // to gRPC
  RelayBuffer down_;  // to the client
  // Whether an operation may succeed, as far as is known.
  bool can_read_client_ = true, can_write_client_ = true, can_read_pair_ = true, can_write_pair_ = true;
  bool client_ended_ = false;
  bool told_pair_ = false;  // of that
  bool pair_ended_ = false;
  bool broken_ = false;
  std::optional<std::chrono::steady_clock::time_point> ending_since_;
};

}  // namespace tdock::rpc
