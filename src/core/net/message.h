// The messages of a connection, whatever carries them. docs/wire-format.md describes them byte by byte.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/tensor/checksum.h"

namespace tdock::net {

// Every message is this header and `length` bytes. Numbers are little-endian.
struct MessageHeader {
  uint32_t length = 0;
  uint8_t type = 0;
  uint8_t zero[3] = {};
  // The number of the call; 0 where there is none.
  uint64_t tag = 0;
};
static_assert(sizeof(MessageHeader) == 16);

// The types that all servers have in common; each has others, from 32 on.
inline constexpr uint8_t kHello = 1;    // from the client, first: see Hello
inline constexpr uint8_t kWelcome = 2;  // from the server, first: what the server says to this client
inline constexpr uint8_t kGoodbye = 3;  // from the server, last: u32 code, and why the connection ends
inline constexpr uint8_t kData = 4;     // from either side: see DataPrefix

// Longer messages end the connection.
inline constexpr uint32_t kMaxHelloBytes = 8 << 10;
inline constexpr uint32_t kMaxWelcomeBytes = 64 << 10;
inline constexpr uint32_t kMaxDataBytes = 1 << 20;

// The beginning of a data message: which bytes of those that belong to the call `tag` follow.
struct DataPrefix {
  uint64_t offset = 0;
  // ChecksumOf() these bytes; 0 over TLS and a Unix socket, which need none.
  uint64_t checksum = 0;
};
static_assert(sizeof(DataPrefix) == 16);
// XXH3 of 64 bits of the eight bytes of the offset, and the bytes.
void BeginChecksum(uint64_t offset, RunningChecksum& checksum);
uint64_t ChecksumOf(uint64_t offset, std::span<const std::byte> bytes);

// Kinds of servers.
enum class Role : uint16_t { kDock = 1, kWorkers = 2 };
absl::string_view NameOf(Role role);

inline constexpr uint32_t kProtocol = 2;

// The name of a connection at its server, which nobody can guess.
inline constexpr size_t kConnectionIdBytes = 16;

// u32 protocol, u16 role, u16 bytes of the token, the token, the connection to join, and the rest, which the role
// describes. A welcome has the connection's own id, and the rest.
struct Hello {
  uint32_t protocol = kProtocol;
  Role role = Role::kDock;
  std::string token = {};
  // Zeros: none. Another socket for an earlier connection carries nothing but its data.
  std::string joins = std::string(kConnectionIdBytes, '\0');
  std::string rest = {};
};
std::string Encode(const Hello& hello);
// InvalidArgument for what is none. The role may be none of the enumerators.
absl::StatusOr<Hello> DecodeHello(absl::string_view body);

inline void AppendHeader(uint8_t type, uint64_t tag, size_t length, std::string* bytes) {
  const MessageHeader header{.length = static_cast<uint32_t>(length), .type = type, .tag = tag};
  bytes->append(reinterpret_cast<const char*>(&header), sizeof(header));
}

inline std::string MessageOf(uint8_t type, uint64_t tag, absl::string_view body) {
  std::string bytes;
  bytes.reserve(sizeof(MessageHeader) + body.size());
  AppendHeader(type, tag, body.size(), &bytes);
  bytes.append(body.data(), body.size());
  return bytes;
}

template <class... Number>
std::string NumbersMessage(uint8_t type, uint64_t tag, Number... numbers) {
  std::string bytes;
  AppendHeader(type, tag, (sizeof(numbers) + ...), &bytes);
  (bytes.append(reinterpret_cast<const char*>(&numbers), sizeof(numbers)), ...);
  return bytes;
}

// The whole message.
std::string GoodbyeMessage(const absl::Status& why);
// The reason in the body of a goodbye; never OK.
absl::Status ReasonIn(absl::string_view body);

// A number at a position of a message, which must contain it.
template <class Number>
Number NumberAt(absl::string_view bytes, size_t at) {
  Number number;
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

inline std::span<const std::byte> AsBytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace tdock::net
