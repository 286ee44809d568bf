// The messages of a stream, as they arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/net/message.h"
#include "core/net/stream.h"
#include "core/tensor/checksum.h"

namespace tdock::net {

// Where the bytes of data messages go, and what may arrive.
class Recipient {
 public:
  virtual ~Recipient() = default;

  // Maximum length of a message of this type; 0 for types that must not arrive.
  virtual uint32_t MaxBytes(uint8_t type) const = 0;
  // False as long as data of this tag must wait for what arrives elsewhere.
  virtual bool IsReadyFor(uint64_t tag) {
    static_cast<void>(tag);
    return true;
  }
  // Appends memory for up to `most` bytes of this tag's data, from `offset` on. None: they go to OnData.
  virtual void RoomsFor(uint64_t tag, uint64_t offset, size_t most, std::vector<iovec>& rooms) {
    static_cast<void>(tag), static_cast<void>(offset), static_cast<void>(most), static_cast<void>(rooms);
  }
  // So many bytes of these rooms were filled. The checksum of a message is right before its last bytes are told of.
  virtual absl::Status OnFilled(uint64_t tag, uint64_t offset, size_t bytes) {
    static_cast<void>(tag), static_cast<void>(offset), static_cast<void>(bytes);
    return absl::OkStatus();
  }
  virtual absl::Status OnData(uint64_t tag, uint64_t offset, std::span<const std::byte> bytes) = 0;
};

// Errors: Unavailable if the stream is over, InvalidArgument for messages that are too long or must not arrive,
// Unavailable for damaged data. Not thread-safe.
class Inbox {
 public:
  explicit Inbox(Recipient& recipient) : recipient_(&recipient) {}
  // From the next message on.
  void ReplaceRecipient(Recipient& recipient) { recipient_ = &recipient; }

  // While it is paused, Next() returns nothing.
  void Pause(bool paused) { paused_ = paused; }

  // Reads from the stream, data straight to its place.
  enum class Arrived { kNothing, kAll, kPerhapsMore, kMustWait };  // kMustWait: see IsReadyFor()
  absl::StatusOr<Arrived> Read(Stream& stream);

  struct Message {
    MessageHeader header;
    // Valid until the next call.
    absl::string_view body;
  };
  // The next message other than data; nothing before all of it was read.
  absl::StatusOr<std::optional<Message>> Next();

 private:
  absl::StatusOr<Arrived> ReadToRooms(Stream& stream);
  absl::Status BeginData(const MessageHeader& header);
  // Bytes of data that are there.
  absl::Status TakeData();
  absl::Status EndData();

  Recipient* recipient_;
  std::string in_;
  size_t begin_ = 0;  // of what was not handled
  bool paused_ = false;

  uint64_t data_left_ = 0;  // bytes of the data message that is arriving
  uint64_t data_tag_ = 0;
  uint64_t data_offset_ = 0;
  uint64_t checksum_ = 0;  // that it must have; 0: none
  std::unique_ptr<RunningChecksum> running_;
  std::vector<iovec> rooms_;
};

}  // namespace tdock::net
