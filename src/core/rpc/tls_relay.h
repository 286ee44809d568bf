// Between a TLS connection and gRPC, which has one end of a pair of sockets. For this module only.
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

// Bytes on their way in one direction, up to a limit.
class RelayBuffer {
 public:
  // Begins with these; if they are more than the limit, they are it.
  explicit RelayBuffer(absl::string_view first);

  bool empty() const { return begin_ == end_; }
  absl::string_view waiting() const { return {bytes_.data() + begin_, end_ - begin_}; }
  void RemovePrefix(size_t bytes);
  // Where more can be put; empty if there is no room.
  std::span<char> Room();
  void Added(size_t bytes) { end_ += bytes; }

 private:
  std::vector<char> bytes_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

// One connection. What either side ends or breaks, ends or breaks for the other, after what was sent before. Not
// thread-safe.
class TlsRelay {
 public:
  enum class Progress {
    kIdle,  // until something happens to one of the sockets
    kMore,  // there is more to do at once: others have their turn first
    kOver,
  };

  // `received` came over the session before.
  TlsRelay(std::unique_ptr<TlsSession> session, absl::string_view received, Socket pair);

  int client() const { return session_->socket().get(); }
  int pair() const { return pair_.get(); }

  // Something has happened to one of the sockets.
  void OnClientEvent(bool broken);
  void OnPairEvent(bool hung_up);
  // Moves what can be moved, up to a bound.
  Progress Turn();
  // Since when gRPC has ended the connection; its last bytes may still wait for the client.
  std::optional<std::chrono::steady_clock::time_point> ending_since() const { return ending_since_; }

 private:
  // Each returns whether it has moved something.
  bool FromClient();
  bool ToPair();
  bool FromPair();
  bool ToClient();

  std::unique_ptr<TlsSession> session_;
  Socket pair_;
  RelayBuffer up_;    // to gRPC
  RelayBuffer down_;  // to the client
  // Whether an operation may do something, as far as is known.
  bool can_read_client_ = true, can_write_client_ = true, can_read_pair_ = true, can_write_pair_ = true;
  bool client_ended_ = false;
  bool told_pair_ = false;  // of that
  bool pair_ended_ = false;
  bool broken_ = false;
  std::optional<std::chrono::steady_clock::time_point> ending_since_;
};

}  // namespace tdock::rpc
