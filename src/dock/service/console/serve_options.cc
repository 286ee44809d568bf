#include "dock/service/console/serve_options.h"

#include <sys/un.h>

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/base/utf8.h"

namespace tdock::console {
namespace {

constexpr int64_t kLeastMemory = int64_t{16} << 20;
constexpr absl::Duration kLongestTime = absl::Hours(24);

}  // namespace

absl::StatusOr<int64_t> ParseBytes(absl::string_view what, absl::string_view text) {
  absl::string_view digits = text;
  double unit = 1;
  double scale = 1;
  for (const absl::string_view suffix : {"KiB", "MiB", "GiB", "TiB"}) {
    scale *= 1024;
    if (absl::ConsumeSuffix(&digits, suffix)) {
      unit = scale;
      break;
    }
  }
  double number = 0;
  const bool plain = !digits.empty() && digits.find_first_not_of("0123456789.") == absl::string_view::npos;
  if (!plain || !absl::SimpleAtod(digits, &number) || number * unit >= 0x1p62) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": '", EscapeForMessage(text), "' is not a size; give one such as 512MiB, 8GiB or 1.5TiB"));
  }
  return static_cast<int64_t>(std::floor(number * unit));
}

std::string DefaultSocket(absl::string_view runtime_dir, unsigned uid) {
  if (!runtime_dir.empty()) return absl::StrCat(absl::StripSuffix(runtime_dir, "/"), "/tdock.sock");
  return absl::StrCat("/tmp/tdock-", uid, ".sock");
}

absl::Status Check(const ServeOptions& options) {
  std::vector<std::string> wrong;
  const auto check_address = [&](absl::string_view flag, const std::string& address) {
    if (address.empty()) return;
    const absl::Status status = ParseHostPort(flag, address).status();
    if (!status.ok()) wrong.emplace_back(status.message());
  };
  check_address("--listen", options.listen);
  check_address("--metrics", options.metrics);
  if (options.listen.empty() && options.socket.empty()) {
    wrong.emplace_back("nothing to listen on: give --listen or --socket something other than none");
  }
  if (!options.socket.empty() && options.socket[0] != '/') {
    wrong.push_back(absl::StrCat("--socket: '", EscapeForMessage(options.socket), "' is not an absolute path"));
  }
  if (constexpr size_t kLongest = sizeof(sockaddr_un::sun_path) - 1; options.socket.size() > kLongest) {
    wrong.push_back(absl::StrCat("--socket: the path has ", options.socket.size(),
                                 " bytes; a Unix socket's has at most ", kLongest));
  }
  if (options.memory_bytes != 0 && options.memory_bytes < kLeastMemory) {
    wrong.push_back(absl::StrCat("--memory: ", options.memory_bytes, " bytes are too little; give at least 16MiB"));
  }
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    wrong.emplace_back("a certificate and its key go together: give both --tls-cert and --tls-key");
  }
  if (!options.tls_ca.empty() && options.tls_cert.empty()) {
    wrong.emplace_back("--tls-ca asks clients for certificates, which needs TLS: give --tls-cert and --tls-key too");
  }
  if (options.listen.empty() && !options.tls_cert.empty()) {
    wrong.emplace_back("TLS is for TCP, which --listen none turns off");
  }
  for (const auto& [flag, time] :
       {std::pair("--drain", options.drain), std::pair("--session-grace", options.session_grace)}) {
    if (time >= absl::ZeroDuration() && time <= kLongestTime) continue;
    wrong.push_back(absl::StrCat(flag, ": give 0 to ", absl::ToInt64Seconds(kLongestTime), " seconds"));
  }
  return wrong.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(wrong, "\n"));
}

}  // namespace tdock::console
