// The bodies of requests, by verb.
#pragma once

#include "absl/strings/string_view.h"
#include "tdock.pb.h"

namespace tdock::service {

// The fields of a request (field_codec.h); empty for other messages.
absl::string_view BodyOf(const v1::Request& request);
// Makes it a request of the verb of this number.
std::string& MutableBody(v1::Request& request, int number);
// True for a put that a frame follows.
bool HasFrame(const v1::Request& request);
// A description of the request, for people.
const char* NameOf(const v1::Request& request);

}  // namespace tdock::service
