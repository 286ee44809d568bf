// The bodies of requests, by verb.
#pragma once

#include "dock/service/wire/field_codec.h"
#include "dock/service/wire/messages.h"
#include "tdock/batch.h"

namespace tdock::service {

// A request of the verb, with times as they are at `now` (field_codec.h).
template <class V>
message::Request RequestOf(const typename V::Request& asked, absl::Time now = absl::UnixEpoch()) {
  message::Request request{.verb = V::kNumber};
  if constexpr (HasFields<typename V::Request>) request.body = Encode(asked, now);
  return request;
}
// True if a frame follows: a put's, a fill's, or an image.
bool HasFrame(const message::Request& request);
// The batch that travels as a frame behind the request; null if it has none.
template <class Request>
auto BatchOf(Request& request) {
  if constexpr (requires { request.batch; }) {
    return &request.batch;
  } else if constexpr (requires { request.image; }) {
    return &request.image;
  } else {
    return static_cast<Batch*>(nullptr);
  }
}
// A description of the request, for people.
const char* NameOf(const message::Request& request);

}  // namespace tdock::service
