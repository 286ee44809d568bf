#include "trainer/reward/external/http_url.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/utf8.h"

namespace tdock::reward {
namespace {

constexpr size_t kLongestUrl = 4096;

bool IsHostCharacter(char c) { return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_'; }
bool IsAddressCharacter(char c) { return absl::ascii_isxdigit(c) || c == ':' || c == '.'; }

// The host and the port of `authority` into `url`; false if it is none.
bool ParseAuthority(absl::string_view authority, HttpUrl& url) {
  const bool bracketed = absl::ConsumePrefix(&authority, "[");
  const size_t end = authority.find(bracketed ? ']' : ':');
  absl::string_view host = authority.substr(0, end);
  absl::string_view rest = end == absl::string_view::npos ? "" : authority.substr(bracketed ? end + 1 : end);
  if (bracketed && end == absl::string_view::npos) return false;
  if (host.empty() || !std::all_of(host.begin(), host.end(), bracketed ? IsAddressCharacter : IsHostCharacter)) {
    return false;
  }
  url.host = std::string(host);
  url.port = url.tls ? 443 : 80;
  if (rest.empty()) return true;
  if (!absl::ConsumePrefix(&rest, ":") || rest.empty() || !std::all_of(rest.begin(), rest.end(), absl::ascii_isdigit)) {
    return false;
  }
  return absl::SimpleAtoi(rest, &url.port) && url.port >= 1 && url.port <= 65535;
}

}  // namespace

absl::StatusOr<HttpUrl> ParseHttpUrl(absl::string_view text, absl::string_view token_key) {
  constexpr char kRight[] = "; it must be http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH";
  absl::string_view rest = text;
  HttpUrl url;
  url.tls = absl::ConsumePrefix(&rest, "https://");
  if (!url.tls && !absl::ConsumePrefix(&rest, "http://")) {
    // Only its beginning, because a password may follow.
    return absl::InvalidArgumentError(absl::StrCat("the URL that begins with ", Quoted(text.substr(0, 6)),
                                                   " has a scheme that is not known", kRight));
  }
  const size_t path = std::min(rest.find_first_of("/?#"), rest.size());
  const absl::string_view authority = rest.substr(0, path);
  if (const size_t at = rest.rfind('@', path); at != absl::string_view::npos && at < path) {
    return absl::InvalidArgumentError(absl::StrCat("the URL of ", Quoted(authority.substr(at + 1)),
                                                   " has a user or a password in it; give a token by ", token_key,
                                                   " instead"));
  }
  absl::string_view target = rest.substr(path);
  const bool clean = text.size() <= kLongestUrl && std::all_of(text.begin(), text.end(), absl::ascii_isgraph);
  if (!clean || absl::StrContains(target, '#') || !ParseAuthority(authority, url)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the URL ", Quoted(text.substr(0, text.find('?'))), " is not valid", kRight));
  }
  url.target = absl::StartsWith(target, "/") ? std::string(target) : absl::StrCat("/", target);
  const bool bracketed = absl::StrContains(url.host, ':');
  url.host_field = bracketed ? absl::StrCat("[", url.host, "]") : url.host;
  if (url.port != (url.tls ? 443 : 80)) absl::StrAppend(&url.host_field, ":", url.port);
  url.shown =
      absl::StrCat(url.tls ? "https://" : "http://", url.host_field, url.target.substr(0, url.target.find('?')));
  return url;
}

}  // namespace tdock::reward
