#include "core/net/message.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tdock::net {
namespace {

constexpr size_t kFixedBytes = 8;  // of a hello
// Longer reasons are cut off.
constexpr size_t kMaxReasonBytes = 4 << 10;

}  // namespace

absl::string_view NameOf(Role role) {
  switch (role) {
    case Role::kDock:
      return "a dock server";
    case Role::kWorkers:
      return "the controller of a run's workers";
  }
  return "something unknown";
}

void BeginChecksum(uint64_t offset, RunningChecksum& checksum) {
  checksum.Reset();
  checksum.Add(std::as_bytes(std::span(&offset, 1)));
}

uint64_t ChecksumOf(uint64_t offset, std::span<const std::byte> bytes) {
  RunningChecksum checksum;
  BeginChecksum(offset, checksum);
  checksum.Add(bytes);
  return checksum.Value();
}

std::string Encode(const Hello& hello) {
  std::string bytes;
  const auto role = static_cast<uint16_t>(hello.role), token_bytes = static_cast<uint16_t>(hello.token.size());
  bytes.append(reinterpret_cast<const char*>(&hello.protocol), sizeof(hello.protocol));
  bytes.append(reinterpret_cast<const char*>(&role), sizeof(role));
  bytes.append(reinterpret_cast<const char*>(&token_bytes), sizeof(token_bytes));
  return bytes + hello.token + hello.joins + hello.rest;
}

absl::StatusOr<Hello> DecodeHello(absl::string_view body) {
  if (body.size() < kFixedBytes) return absl::InvalidArgumentError("a hello that is too short");
  const auto token_bytes = NumberAt<uint16_t>(body, 6);
  if (token_bytes + kConnectionIdBytes > body.size() - kFixedBytes) {
    return absl::InvalidArgumentError("a hello that ends within its token");
  }
  const absl::string_view rest = body.substr(kFixedBytes + token_bytes);
  return Hello{.protocol = NumberAt<uint32_t>(body, 0),
               .role = static_cast<Role>(NumberAt<uint16_t>(body, 4)),
               .token = std::string(body.substr(kFixedBytes, token_bytes)),
               .joins = std::string(rest.substr(0, kConnectionIdBytes)),
               .rest = std::string(rest.substr(kConnectionIdBytes))};
}

std::string GoodbyeMessage(const absl::Status& why) {
  const absl::string_view text = absl::string_view(why.message()).substr(0, kMaxReasonBytes);
  const auto code = static_cast<uint32_t>(why.code());
  std::string body(reinterpret_cast<const char*>(&code), sizeof(code));
  body.append(text.data(), text.size());
  return MessageOf(kGoodbye, 0, body);
}

absl::Status ReasonIn(absl::string_view body) {
  if (body.size() < sizeof(uint32_t)) return absl::UnavailableError("the server has ended the connection");
  const auto code = NumberAt<uint32_t>(body, 0);
  if (code == 0) return absl::UnavailableError("the server has ended the connection");
  const bool known = code <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      body.substr(sizeof(uint32_t)));
}

}  // namespace tdock::net
