// Addresses of HTTP servers.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock::reward {

// Immutable, and so thread-safe.
struct HttpUrl {
  bool tls = false;
  std::string host;  // a name, or an address without brackets
  int port = 0;
  std::string target;      // the path and the query
  std::string host_field;  // what the header field Host says
  std::string shown;       // for messages: without the query, which may hold a secret
};

// InvalidArgument for anything but http://HOST[:PORT][/PATH][?QUERY] and the same with https, and for a user or a
// password in it, which the message does not repeat: it says that `token_key` gives a token.
absl::StatusOr<HttpUrl> ParseHttpUrl(absl::string_view text, absl::string_view token_key = "reward.url_token_env");

}  // namespace tdock::reward
