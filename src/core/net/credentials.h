// Tokens and certificates, of servers and clients. Files are read again when they have changed.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/net/tls.h"

namespace tdock::net {

struct CredentialFiles {
  TlsFiles tls = {};            // empty: plain TCP
  std::string token = {};       // the text itself; or
  std::string token_file = {};  // a file that holds it; both empty: none
};

// Thread-safe.
class Credentials {
 public:
  // `log` is told, in a sentence, of files that have changed; may be empty. InvalidArgument for a token that is none;
  // errors of files name them.
  static absl::StatusOr<std::shared_ptr<Credentials>> Load(const CredentialFiles& files, Tls::Side side,
                                                           std::function<void(const std::string&)> log = {});

  struct Current {
    std::shared_ptr<const Tls> tls;  // null: plain TCP
    std::string token;               // empty: none
  };
  // Returns the contents of the files, and looks at these once a second at most. Wrong new contents are not used.
  Current Get() TDOCK_EXCLUDES(mu_);
  const CredentialFiles& files() const { return files_; }

 private:
  Credentials(const CredentialFiles& files, Tls::Side side, std::function<void(const std::string&)> log)
      : files_(files), side_(side), log_(std::move(log)) {}

  // Differs whenever one of the files has changed.
  std::string State() const;
  absl::StatusOr<Current> Read() const;

  const CredentialFiles files_;
  const Tls::Side side_;
  const std::function<void(const std::string&)> log_;
  Mutex mu_;
  absl::Time looked_ TDOCK_GUARDED_BY(mu_);
  std::string state_ TDOCK_GUARDED_BY(mu_);
  bool failed_ TDOCK_GUARDED_BY(mu_) = false;  // to read them, the last time
  Current current_ TDOCK_GUARDED_BY(mu_);
};

// OK if `shown` is the token. Takes the same time for every token of a length. Unauthenticated.
absl::Status CheckToken(absl::string_view token, absl::string_view shown);

}  // namespace tdock::net
