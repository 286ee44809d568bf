// The bodies of requests, by verb.
#pragma once

#include "absl/strings/string_view.h"
#include "tdock.pb.h"
#include "tdock/batch.h"

namespace tdock::service {

// The fields of a request (field_codec.h); empty for other messages.
absl::string_view BodyOf(const v1::Request& request);
// Makes it a request of the verb of this number.
std::string& MutableBody(v1::Request& request, int number);
// True if a frame follows: a put's, a fill's, or an image.
bool HasFrame(const v1::Request& request);
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
const char* NameOf(const v1::Request& request);

}  // namespace tdock::service
