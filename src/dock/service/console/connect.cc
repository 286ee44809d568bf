#include "dock/service/console/connect.h"

#include <charconv>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::console {

absl::StatusOr<HostPort> ParseHostPort(absl::string_view what, absl::string_view text) {
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": '", EscapeForMessage(text), "' ", why,
                                                   "; give HOST:PORT, such as 127.0.0.1:", kDefaultPort));
  };
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return refuse("has no port");
  absl::string_view host = text.substr(0, colon);
  const absl::string_view digits = text.substr(colon + 1);
  if (absl::ConsumePrefix(&host, "[")) {
    if (!absl::ConsumeSuffix(&host, "]") || host.empty()) return refuse("is not [IPV6]:PORT");
  } else if (absl::StrContains(host, ":")) {
    return refuse("has an IPv6 address without brackets");
  }
  for (const char byte : host) {
    if (byte <= ' ' || byte == 0x7F || byte == '/') return refuse("is not a host name");
  }
  int port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || port < 0 || port > 65535) {
    return refuse("has no port from 0 to 65535");
  }
  return HostPort{host.empty() ? "127.0.0.1" : std::string(host), port};
}

std::string ToString(const HostPort& address) {
  const bool brackets = absl::StrContains(address.host, ":");
  return absl::StrCat(brackets ? "[" : "", address.host, brackets ? "]:" : ":", address.port);
}

absl::Status Check(const ConnectOptions& options) {
  const bool tls = !options.tls_ca.empty() || !options.tls_cert.empty();
  if (options.address.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no server address: give --address HOST:PORT or "
                     "--address unix:/PATH, or set ",
                     kAddressVariable));
  }
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return absl::InvalidArgumentError("a certificate and its key go together: give both --tls-cert and --tls-key");
  }
  if (absl::string_view path = options.address; absl::ConsumePrefix(&path, "unix:")) {
    if (!absl::StartsWith(path, "/")) {
      return absl::InvalidArgumentError(absl::StrCat("--address: '", EscapeForMessage(options.address),
                                                     "' is not an absolute path; give unix:/PATH"));
    }
    if (tls) return absl::InvalidArgumentError("TLS is for TCP: a Unix socket has no --tls-… options");
    return absl::OkStatus();
  }
  TDOCK_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort("--address", options.address));
  if (address.port == 0) return absl::InvalidArgumentError("--address: port 0 is not the port of a server");
  return absl::OkStatus();
}

}  // namespace tdock::console
