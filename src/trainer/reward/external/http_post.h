// HTTP servers that are asked for something, and one request to them with its answer.
#pragma once

#include <functional>
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

struct HttpServerOptions {
  std::string url;
  std::string token_env = {};  // the environment variable that has the bearer token; empty: none is sent
  std::string ca_file = {};    // certificates (PEM) that are trusted; empty: the system's
  bool verify = true;          // check the server's certificate
  std::string key;             // of the configuration that has the URL, for messages: "reward.url"
};
// InvalidArgument for a URL that is not valid, a token that is not there, or a file without certificates.
absl::StatusOr<HttpServer> MakeHttpServer(const HttpServerOptions& options);

struct HttpReply {
  int code = 0;
  std::string body;                         // at most HttpAsk::most_answer_bytes
  std::string location = {};                // of a redirect
  std::optional<absl::Duration> wait = {};  // what the server asks for (Retry-After)
  std::string content_type = {};
};

struct HttpAsk {
  std::string method = "POST";
  std::string target = {};  // beside the server's
  std::string body = {};
  std::string content_type = "application/json";  // of the body
  std::string accept = "application/json";
  // Gets the body of an answer with the code 200 as it arrives, instead of HttpReply::body; false: the rest is of no
  // use.
  std::function<bool(absl::string_view piece)> on_piece = {};
  size_t most_answer_bytes = kMostAnswerBytes;
};

// Asks on a connection of its own, and reads the whole answer, whatever its code: no redirect is followed and nothing
// is decompressed. Unavailable if the connection fails or ends early, DeadlineExceeded, the error of the stop check,
// FailedPrecondition for a certificate that is not accepted, ResourceExhausted for an answer that is too long,
// InvalidArgument for what is not HTTP. `on_piece` may change the deadline of `patience`.
absl::StatusOr<HttpReply> AskHttp(const HttpServer& server, const HttpAsk& ask, const Patience& patience);

// Posts JSON to the server's own target, for training: the error for a certificate names reward.url_ca_file.
absl::StatusOr<HttpReply> PostJson(const HttpServer& server, const std::string& json, const Patience& patience);

// Whether an answer's code asks for another try later: 429, 502, 503, 504.
bool IsOverload(int code);
// The error of an answer whose code is not 200: FailedPrecondition for what a repetition does not change (other codes
// from 300 to 499), else Unavailable. `key` as in HttpServerOptions.
absl::Status CodeError(const HttpReply& reply, absl::string_view key);
// The same error, naming the server first, without the token.
absl::Status OfServer(const HttpServer& server, const absl::Status& status);

}  // namespace tdock::reward
