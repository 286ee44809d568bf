#include "dock/service/wire/request_body.h"

#include "tdock/verbs.h"

namespace tdock::service {

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
