#include "dock/service/wire/messages.h"

#include <limits>

#include "tdock/verbs.h"

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

bool HasFrame(const message::Request& request) {
  switch (request.verb) {
    case verbs::Put::kNumber:
      return NumberIn(request.body, NumberOf(&PutRequest::batch)) != 0;
    case verbs::Fill::kNumber:
      return NumberIn(request.body, NumberOf(&FillRequest::batch)) != 0;
    case verbs::ImportPartition::kNumber:
      return NumberIn(request.body, NumberOf(&ImportRequest::image)) != 0;
    default:
      return false;
  }
}

const char* NameOf(const message::Request& request) {
  switch (request.verb) {
#define TDOCK_NAME(Verb, RequestOf, ReplyOf, name, number, repeatable) \
  case number:                                                         \
    return "does a " #name;
    TDOCK_VERBS(TDOCK_NAME)
#undef TDOCK_NAME
    case message::kCancel:
      return "cancels a call";
    case message::kAcknowledge:
      return "takes an acknowledgement";
    case message::kPing:
      return "answers a ping";
    default:
      return "answers a request that it does not know";
  }
}

}  // namespace tdock::service
