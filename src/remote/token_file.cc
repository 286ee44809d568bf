#include "remote/token_file.h"

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tdock {

absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  constexpr size_t kMostBytes = 4096;
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read the token file '", path, "'"));
  std::string text(kMostBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMostBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the token file '", path, "' has more than ", kMostBytes, " bytes"));
  }
  std::string token(absl::StripAsciiWhitespace(text));
  if (token.empty()) return absl::InvalidArgumentError(absl::StrCat("the token file '", path, "' is empty"));
  if (!std::all_of(token.begin(), token.end(), [](unsigned char byte) { return absl::ascii_isgraph(byte); })) {
    return absl::InvalidArgumentError(
        absl::StrCat("the token file '", path, "' holds something else than printable ASCII without spaces"));
  }
  return token;
}

}  // namespace tdock
