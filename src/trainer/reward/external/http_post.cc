#include "trainer/reward/external/http_post.h"

#include <algorithm>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::reward {
namespace {

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

}  // namespace

absl::StatusOr<HttpReply> PostJson(const HttpServer& server, const std::string& json, const Patience& patience) {
  const Patience connecting{.clock = patience.clock,
                            .deadline = std::min(patience.deadline, patience.clock.Now() + server.connect_within),
                            .check_stop = patience.check_stop};
  absl::StatusOr<std::unique_ptr<HttpConnection>> opened =
      HttpConnection::Open(server.url, server.tls, connecting, patience);
  // A server that cannot be reached in time is no fault of the samples.
  if (absl::IsDeadlineExceeded(opened.status()) && patience.clock.Now() < patience.deadline) {
    return absl::UnavailableError(opened.status().message());
  }
  TDOCK_RETURN_IF_ERROR(opened.status());
  const std::unique_ptr<HttpConnection> connection = *std::move(opened);
  httplib::Request request;
  request.method = "POST";
  request.path = server.url.target;
  request.headers = {{"Host", server.url.host_field},
                     {"Content-Type", "application/json"},
                     {"Accept", "application/json"},
                     {"Accept-Encoding", "identity"},
                     {"User-Agent", "transfer-dock"}};
  if (!server.token.empty()) request.headers.emplace("Authorization", absl::StrCat("Bearer ", server.token));
  request.body = json;
  request.response_handler = [&](const httplib::Response&) {
    connection->BeginBody(kMostAnswerBytes);
    return true;
  };
  httplib::Response response;
  httplib::Error error = httplib::Error::Success;
  Exchange exchange;
  if (!exchange.Run(*connection, request, response, error)) return NoAnswer(*connection, error);
  if (const std::string coding = response.get_header_value("Content-Encoding");
      !coding.empty() && coding != "identity") {
    return absl::InvalidArgumentError(
        absl::StrCat("the answer is compressed (Content-Encoding ", Quoted(coding), "), which was not asked for"));
  }
  return HttpReply{.code = response.status,
                   .body = std::move(response.body),
                   .location = response.get_header_value("Location"),
                   .wait = RetryAfter(response)};
}

}  // namespace tdock::reward
