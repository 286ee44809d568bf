#include "trainer/run_page/page_text.h"

#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "trainer/run_log/page.h"

namespace tdock::trainer {
namespace {

std::string Decoded(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) &&
        absl::ascii_isxdigit(text[i + 2])) {
      int code = 0;
      if (absl::SimpleHexAtoi(text.substr(i + 1, 2), &code)) decoded += static_cast<char>(code);
      i += 2;
    } else {
      decoded += text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

std::string NewNonce() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

}  // namespace

std::map<std::string, std::string> QueryOf(absl::string_view query) {
  std::map<std::string, std::string> members;
  for (const absl::string_view part : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> member = absl::StrSplit(part, absl::MaxSplits('=', 1));
    members.emplace(Decoded(member.first), Decoded(member.second));
  }
  return members;
}

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

std::string EventText(absl::string_view name, const LogRecord& data, absl::string_view id) {
  const std::string id_line = id.empty() ? "" : absl::StrCat("id: ", id, "\n");
  return absl::StrCat(id_line, "event: ", name, "\ndata: ", JsonText(data), "\n\n");
}

uint64_t SeenOf(absl::string_view id, absl::string_view epoch) {
  uint64_t number = 0;
  if (!absl::ConsumePrefix(&id, epoch) || !absl::ConsumePrefix(&id, ".") || !absl::SimpleAtoi(id, &number)) return 0;
  return number;
}

http::Response JsonResponse(const LogRecord& data) {
  return {.body = JsonText(data),
          .content_type = "application/json",
          .headers = {{"Cache-Control", "no-store"}, {"X-Content-Type-Options", "nosniff"}}};
}

http::Response ErrorResponse(int status, absl::string_view message) {
  http::Response response = JsonResponse({{"error", std::string(message)}});
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
