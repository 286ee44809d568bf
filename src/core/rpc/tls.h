// Certificates and keys from files.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tdock::rpc {

// Paths of PEM files; empty: not given. A server needs `certificate` and `key`, and requires a certificate of each
// client if it has a `ca` (mutual TLS). A client trusts servers whose certificate `ca` has signed, and presents
// `certificate` if it has one.
struct TlsFiles {
  std::string certificate = {};  // of this side, with its chain
  std::string key = {};          // of `certificate`, without a password
  std::string ca = {};           // CA certificates to verify the other side with

  bool empty() const { return certificate.empty() && key.empty() && ca.empty(); }
};

// The contents of these files.
struct TlsTexts {
  std::string certificate;
  std::string key;
  std::string ca;
};

// Reads the given files and checks their format, and that the key belongs to the certificate. Errors name the file:
// NotFound or PermissionDenied if it cannot be read, InvalidArgument if its contents are wrong or one of a pair is
// missing.
absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files);

}  // namespace tdock::rpc
