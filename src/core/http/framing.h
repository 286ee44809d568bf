// Checks of a request's head: where the request ends, and whom it is for. Internal to this module.
//
// A proxy and a server that read one head in two ways take a part of one request for another one. So a head is refused
// unless RFC 9110 and RFC 9112 leave one way to read it, and unless this server does all that it asks for.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "core/http/message.h"

namespace tdock::http {

inline constexpr size_t kMaxHeaders = 128;

struct RequestHead {
  std::string method = {};  // "GET"
  std::string target = {};  // "/path?query", "http://host/path", "*" or "host:port"
  int version = 11;         // of HTTP/1.1; 10 of HTTP/1.0
  Headers headers = {};     // names in lower case
};

// The response to a request that is refused. Its connection must be closed: nobody knows where the next request begins.
struct Refusal {
  int status = 400;
  std::string message = {};
  Headers headers = {};
};

// Nothing if the head is right:
//
//   400  a wrong target; a missing, repeated or invalid Host; a length that is given twice, or is no number; chunks
//   that
//        are not the last and only coding of the body
//   415  a body that is compressed (Content-Encoding)
//   417  an expectation other than 100-continue
//   431  more than kMaxHeaders headers
//   501  CONNECT; a coding of the transfer beside chunks
std::optional<Refusal> CheckFraming(const RequestHead& head);

// The request of a head that CheckFraming() has passed, without its body. Of a target in the absolute form, which names
// the host again, the path and the query remain.
Request RequestOf(RequestHead head, std::string peer);

}  // namespace tdock::http
