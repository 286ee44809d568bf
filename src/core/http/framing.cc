#include "core/http/framing.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/utf8.h"

namespace tdock::http {
namespace {

using Checked = std::optional<Refusal>;

Refusal Refuse(int status, std::string message) { return {.status = status, .message = std::move(message)}; }

std::vector<absl::string_view> ValuesOf(const RequestHead& head, absl::string_view name) {
  std::vector<absl::string_view> values;
  for (const auto& [given, value] : head.headers) {
    if (given == name) values.push_back(value);
  }
  return values;
}

bool IsDigits(absl::string_view text) { return std::all_of(text.begin(), text.end(), absl::ascii_isdigit); }

// A name or an address with perhaps a port, without a user: "host", "host:80", "[::1]:80". The name may be empty.
bool IsAuthority(absl::string_view text) {
  const auto is_name = [](char c) { return absl::ascii_isalnum(c) || absl::StrContains("-._~%!$&'()*+,;=", c); };
  const auto is_address = [&](char c) { return c == ':' || is_name(c); };
  if (absl::ConsumePrefix(&text, "[")) {
    const size_t end = text.find(']');
    if (end == absl::string_view::npos || end == 0) return false;
    if (!std::all_of(text.begin(), text.begin() + static_cast<ptrdiff_t>(end), is_address)) return false;
    text.remove_prefix(end + 1);
  } else {
    const absl::string_view name = text.substr(0, text.find(':'));
    if (!std::all_of(name.begin(), name.end(), is_name)) return false;
    text.remove_prefix(name.size());
  }
  return text.empty() || (absl::ConsumePrefix(&text, ":") && text.size() <= 5 && IsDigits(text));
}

// The authority of "http://authority/path", which is taken away; nothing if the target has no such form.
std::optional<absl::string_view> TakeAuthority(absl::string_view& target) {
  for (const absl::string_view scheme : {"http://", "https://"}) {
    if (!absl::StartsWithIgnoreCase(target, scheme)) continue;
    const absl::string_view rest = target.substr(scheme.size());
    const absl::string_view authority = rest.substr(0, rest.find_first_of("/?"));
    target = rest.substr(authority.size());
    return authority;
  }
  return std::nullopt;
}

Checked CheckHost(const RequestHead& head) {
  const std::vector<absl::string_view> hosts = ValuesOf(head, "host");
  if (hosts.size() > 1) return Refuse(400, absl::StrCat("a request has one Host header; this one has ", hosts.size()));
  if (hosts.empty() && head.version > 10)
    return Refuse(400, "a request of HTTP/1.1 has a Host header; this one has none");
  if (!hosts.empty() && !IsAuthority(hosts[0])) {
    return Refuse(400, absl::StrCat("the Host header has a name or an address, and perhaps a port; this one has ",
                                    Quoted(hosts[0])));
  }
  return std::nullopt;
}

Checked CheckTarget(const RequestHead& head) {
  absl::string_view target = head.target;
  if (head.method == "CONNECT") return Refuse(501, "this server opens no tunnels to others, so it has no CONNECT");
  if (target == "*") {
    if (head.method == "OPTIONS") return std::nullopt;
    return Refuse(400, absl::StrCat("the target * is for OPTIONS; ", head.method, " has a path"));
  }
  if (absl::StrContains(target, '#')) {
    return Refuse(400, absl::StrCat("a target has no fragment; this one is ", Quoted(target)));
  }
  if (absl::StartsWith(target, "/")) return std::nullopt;
  const std::optional<absl::string_view> authority = TakeAuthority(target);
  if (!authority || authority->empty() || !IsAuthority(*authority)) {
    return Refuse(400, absl::StrCat("a target is a path that begins with /, or http://HOST/PATH; this one is ",
                                    Quoted(head.target)));
  }
  for (const absl::string_view host : ValuesOf(head, "host")) {
    const absl::string_view port = absl::StartsWithIgnoreCase(head.target, "https://") ? ":443" : ":80";
    if (!absl::EqualsIgnoreCase(absl::StripSuffix(host, port), absl::StripSuffix(*authority, port))) {
      return Refuse(400, absl::StrCat("the target is of the host ", Quoted(*authority), ", and the Host header names ",
                                      Quoted(host)));
    }
  }
  return std::nullopt;
}

Checked CheckTransferEncoding(const RequestHead& head, const std::vector<absl::string_view>& values) {
  if (head.version < 11) return Refuse(400, "HTTP/1.0 has no Transfer-Encoding; give the body's Content-Length");
  if (!ValuesOf(head, "content-length").empty()) {
    return Refuse(400, "a request has either Transfer-Encoding or Content-Length; this one has both");
  }
  const std::string all = absl::StrJoin(values, ",");
  std::vector<absl::string_view> codings = absl::StrSplit(all, ',');
  for (absl::string_view& coding : codings) coding = absl::StripAsciiWhitespace(coding);
  const auto is_chunked = [](absl::string_view coding) { return absl::EqualsIgnoreCase(coding, "chunked"); };
  const auto chunks = std::count_if(codings.begin(), codings.end(), is_chunked);
  if (chunks != 1 || !is_chunked(codings.back())) {
    return Refuse(400, absl::StrCat("the end of a body is known by Content-Length, or by chunked as the last "
                                    "Transfer-Encoding, once; this request has ",
                                    Quoted(all)));
  }
  if (codings.size() > 1) {
    return Refuse(501,
                  absl::StrCat("this server has no Transfer-Encoding but chunked; this request has ", Quoted(all)));
  }
  return std::nullopt;
}

Checked CheckContentLength(const std::vector<absl::string_view>& values) {
  if (values.size() > 1) {
    return Refuse(400, absl::StrCat("a request has one Content-Length; this one has ", values.size()));
  }
  uint64_t length = 0;
  if (!values[0].empty() && IsDigits(values[0]) && absl::SimpleAtoi(values[0], &length)) return std::nullopt;
  return Refuse(400,
                absl::StrCat("a Content-Length is one number of bytes, in digits; this one is ", Quoted(values[0])));
}

Checked CheckBody(const RequestHead& head) {
  if (const auto codings = ValuesOf(head, "transfer-encoding"); !codings.empty()) {
    if (Checked refusal = CheckTransferEncoding(head, codings)) return refusal;
  } else if (const auto lengths = ValuesOf(head, "content-length"); !lengths.empty()) {
    if (Checked refusal = CheckContentLength(lengths)) return refusal;
  }
  for (const absl::string_view coding : ValuesOf(head, "content-encoding")) {
    if (coding.empty() || absl::EqualsIgnoreCase(coding, "identity")) continue;
    Refusal refusal = Refuse(
        415,
        absl::StrCat("this server reads no compressed bodies; this one has the Content-Encoding ", Quoted(coding)));
    refusal.headers.emplace_back("Accept-Encoding", "identity");
    return refusal;
  }
  for (const absl::string_view expected : ValuesOf(head, "expect")) {
    if (expected.empty() || absl::EqualsIgnoreCase(expected, "100-continue")) continue;
    return Refuse(417, absl::StrCat("this server meets no Expect but 100-continue; this one is ", Quoted(expected)));
  }
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> CheckFraming(const RequestHead& head) {
  if (head.headers.size() > kMaxHeaders) {
    return Refuse(431,
                  absl::StrCat("a request has at most ", kMaxHeaders, " headers; this one has ", head.headers.size()));
  }
  if (Checked refusal = CheckHost(head)) return refusal;
  if (Checked refusal = CheckTarget(head)) return refusal;
  return CheckBody(head);
}

Request RequestOf(RequestHead head, std::string peer) {
  absl::string_view target = head.target;
  TakeAuthority(target);
  const size_t query = std::min(target.find('?'), target.size());
  Request request{.method = std::move(head.method), .headers = std::move(head.headers), .peer = std::move(peer)};
  request.path = query == 0 ? "/" : std::string(target.substr(0, query));
  if (query < target.size()) request.query = std::string(target.substr(query + 1));
  return request;
}

}  // namespace tdock::http
