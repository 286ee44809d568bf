#include "dock/service/wire/request_body.h"

#include "dock/service/wire/field_codec.h"
#include "tdock/verbs.h"

namespace tdock::service {

absl::string_view BodyOf(const v1::Request& request) {
  switch (request.body_case()) {
#define TDOCK_BODY(Verb, RequestOf, ReplyOf, name, number, repeatable) \
  case v1::Request::k##Verb:                                           \
    static_assert(v1::Request::k##Verb == number);                     \
    return request.name();
    TDOCK_VERBS(TDOCK_BODY)
#undef TDOCK_BODY
    default:
      return "";
  }
}

std::string& MutableBody(v1::Request& request, int number) {
  switch (number) {
#define TDOCK_BODY(Verb, RequestOf, ReplyOf, name, number, repeatable) \
  case number:                                                         \
    return *request.mutable_##name();
    TDOCK_VERBS(TDOCK_BODY)
#undef TDOCK_BODY
    default:
      return *request.mutable_ping();
  }
}

bool HasFrame(const v1::Request& request) {
  if (request.has_import_partition()) return NumberIn(request.import_partition(), NumberOf(&ImportRequest::image)) != 0;
  if (request.has_fill()) return NumberIn(request.fill(), NumberOf(&FillRequest::batch)) != 0;
  return request.has_put() && NumberIn(request.put(), NumberOf(&PutRequest::batch)) != 0;
}

const char* NameOf(const v1::Request& request) {
  switch (request.body_case()) {
#define TDOCK_NAME(Verb, RequestOf, ReplyOf, name, number, repeatable) \
  case v1::Request::k##Verb:                                           \
    return "does a " #name;
    TDOCK_VERBS(TDOCK_NAME)
#undef TDOCK_NAME
    case v1::Request::kCancel:
      return "cancels a call";
    case v1::Request::kAcknowledge:
      return "takes an acknowledgement";
    case v1::Request::kPing:
      return "answers a ping";
    default:
      return "answers a request that it does not know";
  }
}

}  // namespace tdock::service
