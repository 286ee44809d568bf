// The messages over the Unix socket. docs/wire-format.md describes them byte by byte.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"
#include "dock/service/wire/messages.h"

namespace tdock::service {

// Every message is this header and `length` bytes. Numbers are little-endian.
enum class SocketMessage : uint8_t {
  // From the client.
  kHello = 1,  // a Hello
  kCall = 2,   // a Request
  kData = 3,   // bytes of the frame of that call
  kSlot = 4,   // bytes of that frame that lie in the upload area: u32 slot, u32 bytes, from the slot's begin on
  // From the server.
  kWelcome = 16,   // a Welcome; the upload area comes with it as a descriptor
  kReply = 17,     // a Reply
  kConsumed = 18,  // the contents of a slot were copied: u32 slot
  kSegment = 19,   // shared memory that responses refer to: u64 number, u64 bytes; its descriptor comes with it
  kGone = 20,      // no response will refer to it any more: u64 number
  kGoodbye = 21,   // a Reply with the reason why the connection ends
};

struct SocketHeader {
  uint32_t length = 0;
  SocketMessage type = SocketMessage::kHello;
  uint8_t zero[3] = {};
  // The number of the call; 0 where there is none.
  uint64_t tag = 0;
};
static_assert(sizeof(SocketHeader) == 16);

// Longer messages end the connection.
inline constexpr uint32_t kMaxSocketControlBytes = 64 << 20;
inline constexpr uint32_t kMaxSocketDataBytes = 1 << 20;

inline uint32_t MaxSocketMessageBytes(SocketMessage type) {
  switch (type) {
    case SocketMessage::kHello:
    case SocketMessage::kWelcome:
    case SocketMessage::kGoodbye:
      return 64 << 10;
    case SocketMessage::kCall:
    case SocketMessage::kReply:
      return kMaxSocketControlBytes;
    case SocketMessage::kData:
      return kMaxSocketDataBytes;
    case SocketMessage::kSegment:
      return 16;
    case SocketMessage::kSlot:
    case SocketMessage::kGone:
      return 8;
    case SocketMessage::kConsumed:
      return 4;
  }
  return 0;
}

inline void AppendHeader(SocketMessage type, uint64_t tag, size_t length, std::string* bytes) {
  const SocketHeader header{.length = static_cast<uint32_t>(length), .type = type, .tag = tag};
  bytes->append(reinterpret_cast<const char*>(&header), sizeof(header));
}

template <class... Number>
std::string NumbersMessage(SocketMessage type, uint64_t tag, Number... numbers) {
  std::string bytes;
  AppendHeader(type, tag, (sizeof(numbers) + ...), &bytes);
  (bytes.append(reinterpret_cast<const char*>(&numbers), sizeof(numbers)), ...);
  return bytes;
}

template <class Message>
std::string ControlMessage(SocketMessage type, uint64_t tag, const Message& message) {
  std::string bytes = Serialize(message, sizeof(SocketHeader));
  const SocketHeader header{
      .length = static_cast<uint32_t>(bytes.size() - sizeof(SocketHeader)), .type = type, .tag = tag};
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

// A number at a position of a message, which must contain it.
template <class Number>
Number NumberAt(absl::string_view bytes, size_t at) {
  Number number;
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

}  // namespace tdock::service
