// One request to an HTTP server, and its answer.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "trainer/reward/external/http_connection.h"
#include "trainer/reward/external/http_url.h"
#include "trainer/reward/external/patience.h"

namespace tdock::reward {

inline constexpr size_t kMostAnswerBytes = 16 << 20;

// Where requests go. Thread-safe.
struct HttpServer {
  HttpUrl url;
  TlsContext tls = {};     // for https
  std::string token = {};  // sent as a bearer token, unless it is empty; appears in no message
  absl::Duration connect_within = absl::Seconds(10);
};

struct HttpReply {
  int code = 0;
  std::string body;                         // at most kMostAnswerBytes
  std::string location = {};                // of a redirect
  std::optional<absl::Duration> wait = {};  // what the server asks for (Retry-After)
};

// Posts JSON on a connection of its own, and reads the whole answer, whatever its code: no redirect is followed and
// nothing is decompressed. Unavailable if the connection fails or ends early, DeadlineExceeded, the error of the stop
// check, FailedPrecondition for a certificate that is not accepted, ResourceExhausted for an answer that is too long,
// InvalidArgument for what is not HTTP.
absl::StatusOr<HttpReply> PostJson(const HttpServer& server, const std::string& json, const Patience& patience);

}  // namespace tdock::reward
