#include "trainer/run_page/page_text.h"

#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "trainer/run_log/metrics_log.h"
#include "trainer/run_log/page.h"

namespace tdock::trainer {
namespace {

std::string NewNonce() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

}  // namespace

bool IsOwnHost(absl::string_view header, absl::string_view served_host) {
  if (served_host == "0.0.0.0" || served_host == "::") return true;  // whatever the machine is called
  absl::string_view host = header;
  if (absl::StartsWith(host, "[")) {
    host = host.substr(1, host.find(']') - 1);
  } else {
    host = host.substr(0, host.find(':'));
  }
  return host == served_host || host == "localhost" || host == "127.0.0.1" || host == "::1";
}

std::string EventText(absl::string_view name, absl::string_view json, absl::string_view id) {
  const std::string id_line = id.empty() ? "" : absl::StrCat("id: ", id, "\n");
  return absl::StrCat(id_line, "event: ", name, "\ndata: ", json, "\n\n");
}

uint64_t SeenOf(absl::string_view id, absl::string_view epoch) {
  uint64_t number = 0;
  if (!absl::ConsumePrefix(&id, epoch) || !absl::ConsumePrefix(&id, ".") || !absl::SimpleAtoi(id, &number)) return 0;
  return number;
}

http::Response JsonResponse(std::string json) {
  return {.body = std::move(json),
          .content_type = "application/json",
          .headers = {{"Cache-Control", "no-store"}, {"X-Content-Type-Options", "nosniff"}}};
}

http::Response ErrorResponse(int status, absl::string_view message) {
  http::Response response = JsonResponse(JsonText(LogRecord{{"error", std::string(message)}}));
  response.status = status;
  return response;
}

http::Response PageResponse() {
  const std::string nonce = NewNonce();
  return {.body = absl::StrReplaceAll(LivePage(), {{"{{nonce}}", nonce}}),
          .content_type = "text/html; charset=utf-8",
          .headers = {{"Content-Security-Policy",
                       absl::StrCat("default-src 'none'; script-src 'nonce-", nonce,
                                    "'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; "
                                    "form-action 'none'; frame-ancestors 'none'")},
                      {"Cache-Control", "no-store"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"}}};
}

}  // namespace tdock::trainer
