#include "dock/service/remote/token.h"

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"

namespace tdock::service {
namespace {

constexpr size_t kMostTokenBytes = 4096;

}  // namespace

absl::StatusOr<std::string> TokenFrom(absl::string_view text, absl::string_view what) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(what, " is empty"));
  if (text.size() > kMostTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " has ", text.size(), " bytes; at most ", kMostTokenBytes, " are allowed"));
  }
  if (!std::all_of(text.begin(), text.end(), [](unsigned char byte) { return absl::ascii_isgraph(byte); })) {
    return absl::InvalidArgumentError(absl::StrCat(what, " holds something other than printable ASCII without spaces"));
  }
  return std::string(text);
}

absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  const std::string what = absl::StrCat("the token file '", EscapeForMessage(path, path.size()), "'");
  if (path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(what, " has a zero byte in its path"));
  }
  // It may be a pipe.
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", what));
  std::string text(2 * kMostTokenBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return TokenFrom(absl::StripAsciiWhitespace(text), what);
}

}  // namespace tdock::service
