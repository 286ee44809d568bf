#include "core/net/credentials.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::net {
namespace {

constexpr size_t kMaxTokenBytes = 4096;
constexpr absl::Duration kLookEvery = absl::Seconds(1);

// A token: printable ASCII without spaces. Trailing line ends, as files have them, are removed. InvalidArgument for
// anything else, beginning with `what`, and not quoting the token.
absl::StatusOr<std::string> TokenFrom(absl::string_view text, absl::string_view what) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(what, " is empty"));
  if (text.size() > kMaxTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " has ", text.size(), " bytes; at most ", kMaxTokenBytes, " are allowed"));
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
  std::string text(2 * kMaxTokenBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return TokenFrom(absl::StripAsciiWhitespace(text), what);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Credentials>> Credentials::Load(const CredentialFiles& files, Tls::Side side,
                                                               std::function<void(const std::string&)> log) {
  std::shared_ptr<Credentials> credentials(new Credentials(files, side, std::move(log)));
  std::string state = credentials->State();
  TDOCK_ASSIGN_OR_RETURN(Current current, credentials->Read());
  MutexLock lock(credentials->mu_);
  credentials->looked_ = absl::Now();
  credentials->state_ = std::move(state);
  credentials->current_ = std::move(current);
  return credentials;
}

absl::StatusOr<Credentials::Current> Credentials::Read() const {
  Current current;
  if (!files_.tls.empty()) {
    TDOCK_ASSIGN_OR_RETURN(current.tls, Tls::Load(files_.tls, side_));
  }
  if (!files_.token_file.empty()) {
    TDOCK_ASSIGN_OR_RETURN(current.token, ReadTokenFile(files_.token_file));
  } else if (!files_.token.empty()) {
    TDOCK_ASSIGN_OR_RETURN(current.token, TokenFrom(files_.token, "the token"));
  }
  return current;
}

std::string Credentials::State() const {
  std::string state;
  for (const std::string* path : {&files_.tls.certificate, &files_.tls.key, &files_.tls.ca, &files_.token_file}) {
    struct stat there = {};
    // A pipe can be read once.
    if (path->empty() || stat(path->c_str(), &there) != 0 || !S_ISREG(there.st_mode)) continue;
    absl::StrAppend(&state, *path, " ", there.st_ino, " ", there.st_size, " ", there.st_mtim.tv_sec, " ",
                    there.st_mtim.tv_nsec, "\n");
  }
  return state;
}

Credentials::Current Credentials::Get() {
  {
    const MutexLock lock(mu_);
    if (absl::Now() < looked_ + kLookEvery) return current_;
    looked_ = absl::Now();
  }
  std::string state = State();
  bool is_new = false;
  {
    const MutexLock lock(mu_);
    is_new = state != state_;
    // Wrong files are read again: a fault may pass.
    if (!is_new && !failed_) return current_;
    state_ = std::move(state);
  }
  const absl::StatusOr<Current> read = Read();
  if (log_ && (read.ok() || is_new)) {
    log_(read.ok() ? std::string("the files of the token or of TLS have changed, and are used from now on")
                   : absl::StrCat("the files of the token or of TLS have changed, and are wrong now; what they held "
                                  "before is used: ",
                                  read.status().message()));
  }
  const MutexLock lock(mu_);
  failed_ = !read.ok();
  if (read.ok()) current_ = *read;
  return current_;
}

absl::Status CheckToken(absl::string_view token, absl::string_view shown) {
  if (token.empty()) return absl::OkStatus();
  if (shown.empty()) return absl::UnauthenticatedError("this server requires a token, and the client has none");
  unsigned difference = token.size() == shown.size() ? 0 : 1;
  for (size_t i = 0; i < shown.size(); ++i) {
    difference |= static_cast<unsigned char>(shown[i]) ^ static_cast<unsigned char>(token[i % token.size()]);
  }
  if (difference == 0) return absl::OkStatus();
  return absl::UnauthenticatedError("the token of the client is not the server's");
}

}  // namespace tdock::net
