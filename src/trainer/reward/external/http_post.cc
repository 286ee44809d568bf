#include "trainer/reward/external/http_post.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::reward {
namespace {

constexpr size_t kShownBody = 200;

absl::StatusOr<std::string> TokenOf(const HttpServerOptions& options) {
  if (options.token_env.empty()) return std::string();
  const char* token = std::getenv(options.token_env.c_str());
  const std::string text = token == nullptr ? "" : token;
  if (!text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isgraph)) return text;
  return absl::InvalidArgumentError(
      absl::StrCat(options.key, "_token_env names the environment variable ", Quoted(options.token_env), ", which ",
                   text.empty() ? "is not set" : "has more than printable ASCII characters"));
}

// httplib's protocol without its sockets.
class Exchange final : public httplib::ClientImpl {
 public:
  Exchange() : ClientImpl("unused") {
    set_url_encode(false);
    set_decompress(false);
    set_follow_location(false);
  }
  bool Run(HttpConnection& connection, httplib::Request& request, httplib::Response& response, httplib::Error& error) {
    return process_request(connection, request, response, /*close_connection=*/true, error);
  }
};

absl::Status NoAnswer(const HttpConnection& connection, httplib::Error error) {
  if (!connection.error().ok()) return connection.error();
  if (error == httplib::Error::Read) {
    return absl::UnavailableError("the server closed the connection before its answer was complete, or sent no HTTP");
  }
  return absl::InvalidArgumentError(absl::StrCat("no valid answer: ", httplib::to_string(error)));
}

std::optional<absl::Duration> RetryAfter(const httplib::Response& response) {
  int64_t seconds = 0;
  if (!absl::SimpleAtoi(response.get_header_value("Retry-After"), &seconds) || seconds < 0) return std::nullopt;
  return absl::Seconds(seconds);
}

httplib::Request RequestOf(const HttpServer& server, const HttpAsk& ask) {
  httplib::Request request;
  request.method = ask.method;
  request.path = ask.target;
  request.headers = {{"Host", server.url.host_field},
                     {"Accept", ask.accept},
                     {"Accept-Encoding", "identity"},
                     {"User-Agent", "transfer-dock"}};
  if (!ask.body.empty()) request.headers.emplace("Content-Type", ask.content_type);
  if (!server.token.empty()) request.headers.emplace("Authorization", absl::StrCat("Bearer ", server.token));
  request.body = ask.body;
  return request;
}

}  // namespace

absl::StatusOr<HttpServer> MakeHttpServer(const HttpServerOptions& options) {
  HttpServer server;
  TDOCK_ASSIGN_OR_RETURN(server.url, ParseHttpUrl(options.url));
  TDOCK_ASSIGN_OR_RETURN(server.token, TokenOf(options));
  if (server.url.tls) {
    TDOCK_ASSIGN_OR_RETURN(server.tls, MakeTlsContext(options.ca_file, options.verify));
  }
  return server;
}

bool IsOverload(int code) { return code == 429 || code == 502 || code == 503 || code == 504; }

absl::Status CodeError(const HttpReply& reply, absl::string_view key) {
  if (reply.code >= 300 && reply.code < 400) {
    return absl::FailedPreconditionError(absl::StrCat("answered with the redirect ", reply.code, " to ",
                                                      Quoted(reply.location.substr(0, reply.location.find('?'))),
                                                      "; no redirect is followed: give the place itself as ", key));
  }
  const std::string what =
      absl::StrCat("answered with code ", reply.code, ": ", EscapeForMessage(reply.body, kShownBody));
  if (!IsOverload(reply.code) && reply.code >= 400 && reply.code < 500) return absl::FailedPreconditionError(what);
  return absl::UnavailableError(what);
}

absl::Status OfServer(const HttpServer& server, const absl::Status& status) {
  const std::string text = absl::StrCat(server.url.shown, ": ", status.message());
  return {status.code(), server.token.empty() ? text : absl::StrReplaceAll(text, {{server.token, "(token)"}})};
}

absl::StatusOr<HttpReply> AskHttp(const HttpServer& server, const HttpAsk& ask, const Patience& patience) {
  const Patience connecting{.clock = patience.clock,
                            .deadline = std::min(patience.deadline, patience.clock.Now() + server.connect_within),
                            .check_stop = patience.check_stop};
  absl::StatusOr<std::unique_ptr<HttpConnection>> opened =
      HttpConnection::Open(server.url, server.tls, connecting, patience);
  // A server that cannot be reached in time is no fault of what it is asked.
  if (absl::IsDeadlineExceeded(opened.status()) && patience.clock.Now() < patience.deadline) {
    return absl::UnavailableError(opened.status().message());
  }
  TDOCK_RETURN_IF_ERROR(opened.status());
  const std::unique_ptr<HttpConnection> connection = *std::move(opened);
  httplib::Request request = RequestOf(server, ask);
  HttpReply reply;
  bool enough = false;
  request.response_handler = [&](const httplib::Response& head) {
    reply.code = head.status;
    connection->BeginBody(ask.most_answer_bytes);
    return true;
  };
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    if (reply.code != 200 || !ask.on_piece) {
      reply.body.append(data, size);
    } else {
      enough = !ask.on_piece(absl::string_view(data, size));
    }
    return !enough;
  };
  httplib::Response response;
  httplib::Error error = httplib::Error::Success;
  Exchange exchange;
  if (!exchange.Run(*connection, request, response, error) && !enough) return NoAnswer(*connection, error);
  if (const std::string coding = response.get_header_value("Content-Encoding");
      !coding.empty() && coding != "identity") {
    return absl::InvalidArgumentError(
        absl::StrCat("the answer is compressed (Content-Encoding ", Quoted(coding), "), which was not asked for"));
  }
  reply.code = response.status;
  reply.location = response.get_header_value("Location");
  reply.wait = RetryAfter(response);
  reply.content_type = response.get_header_value("Content-Type");
  return reply;
}

absl::StatusOr<HttpReply> PostJson(const HttpServer& server, const std::string& json, const Patience& patience) {
  absl::StatusOr<HttpReply> reply = AskHttp(server, {.target = server.url.target, .body = json}, patience);
  if (!absl::IsFailedPrecondition(reply.status())) return reply;
  return absl::FailedPreconditionError(
      absl::StrCat(reply.status().message(), "; reward.url_ca_file names the certificates that are trusted"));
}

}  // namespace tdock::reward
