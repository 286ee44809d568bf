#include "dock/service/wire/fields.h"

#include <limits>

namespace tdock::service {

int64_t ToWire(absl::Duration duration) { return absl::ToInt64Nanoseconds(duration); }

absl::Duration DurationFromWire(int64_t nanoseconds) {
  if (nanoseconds == std::numeric_limits<int64_t>::max()) return absl::InfiniteDuration();
  if (nanoseconds == std::numeric_limits<int64_t>::min()) return -absl::InfiniteDuration();
  return absl::Nanoseconds(nanoseconds);
}

void Encode(const absl::Status& status, message::Reply* reply) {
  reply->code = static_cast<uint32_t>(status.code());
  reply->message = std::string(status.message());
}

absl::Status StatusOf(const message::Reply& reply) {
  if (reply.code == 0) return absl::OkStatus();
  constexpr auto kLast = static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  return absl::Status(reply.code > kLast ? absl::StatusCode::kUnknown : static_cast<absl::StatusCode>(reply.code),
                      reply.message);
}

}  // namespace tdock::service
