// The messages that wait to be sent over a stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/net/message.h"
#include "core/net/stream.h"

namespace tdock::net {

// Not thread-safe.
class Outbox {
 public:
  // Less data than this is not worth several streams.
  static constexpr uint64_t kStripedBytes = 16 << 20;

  // A whole message, with the file that is passed along.
  void Add(std::string message, std::shared_ptr<const FileDescriptor> file = nullptr);
  // Bytes of a call, from `offset` on, in data messages. `owner` keeps the pieces alive; many small ones take longer
  // than large ones.
  void AddData(uint64_t tag, uint64_t offset, std::vector<std::span<const std::byte>> pieces,
               std::shared_ptr<const void> owner);
  // All bytes of a call: over each of several streams a part, if there are many.
  static void AddStriped(std::span<Outbox* const> streams, uint64_t tag, std::vector<std::span<const std::byte>> pieces,
                         const std::shared_ptr<const void>& owner);

  // Sends until there is no more room, or about `most` bytes are sent. Unavailable if the connection is over.
  absl::Status Send(Stream& stream, size_t most = SIZE_MAX);
  bool empty() const { return items_.empty(); }
  // The bytes that were added and not sent.
  uint64_t queued_bytes() const { return queued_bytes_; }
  // The last call could not send because the stream had no room.
  bool full() const { return full_; }

 private:
  struct Item {
    std::string message = {};
    std::shared_ptr<const FileDescriptor> file = {};
    size_t sent = 0;  // of the message
    // Or data: what was not sent, of the first piece from `at` on.
    std::vector<std::span<const std::byte>> pieces = {};
    std::shared_ptr<const void> owner = {};
    uint64_t tag = 0, offset = 0;
    size_t piece = 0, at = 0;
    uint64_t left = 0;        // of all messages
    uint64_t chunk_left = 0;  // of the message that is being sent, whose header is `message`
  };
  // Appends what to send next of it. False if nothing may follow it now.
  bool Gather(Item& item, bool first, bool checked, std::vector<iovec>& pieces);
  static void BeginChunk(Item& item, bool checked);
  // So many bytes of the first items were sent.
  void Advance(size_t bytes);

  std::deque<Item> items_;
  std::vector<iovec> gathered_;
  uint64_t queued_bytes_ = 0;
  bool full_ = false;
};

}  // namespace tdock::net
