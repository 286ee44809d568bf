// The messages between a dock server and its clients, besides those of core/net/message.h. docs/wire-format.md
// describes them byte by byte.
#pragma once

#include <cstdint>
#include <string>

#include "core/net/message.h"
#include "dock/service/wire/messages.h"

namespace tdock::service {

enum DockMessage : uint8_t {
  // From the client. The bytes of a call's frame follow it: as data, or
  kCall = 32,  // a Request
  kSlot = 33,  // those that lie in the upload area: u32 slot, u32 bytes, from the slot's begin on
  // From the server. Bytes that a reply streams follow it as data.
  kReply = 34,     // a Reply
  kConsumed = 35,  // the contents of a slot were copied: u32 slot
  kSegment = 36,   // shared memory that responses refer to: u64 number, u64 bytes; its descriptor comes with it
  kGone = 37,      // no response will refer to it any more: u64 number
};

// The limit on a Request, and on a Reply with the places of its cells.
inline constexpr uint32_t kMaxControlBytes = 64 << 20;

inline uint32_t MaxBytesFromClient(uint8_t type, bool passes_files) {
  if (type == kCall) return kMaxControlBytes;
  return type == kSlot && passes_files ? 8 : 0;
}

inline uint32_t MaxBytesFromServer(uint8_t type, bool passes_files) {
  if (type == kReply) return kMaxControlBytes;
  if (type == net::kGoodbye) return net::kMaxWelcomeBytes;
  if (!passes_files) return 0;
  if (type == kSegment) return 16;
  if (type == kGone) return 8;
  return type == kConsumed ? 4 : 0;
}

template <class Message>
std::string ControlMessage(uint8_t type, uint64_t tag, const Message& message) {
  std::string bytes = Serialize(message, sizeof(net::MessageHeader));
  const net::MessageHeader header{
      .length = static_cast<uint32_t>(bytes.size() - sizeof(header)), .type = type, .tag = tag};
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

}  // namespace tdock::service
