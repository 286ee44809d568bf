// Certificates and keys from files.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tdock::rpc {

// Paths of PEM files; empty: not given. A server needs `certificate` and `key`, and demands a certificate of each
// client when it has a `ca` (mutual TLS). A client trusts the servers that `ca` vouches for, and shows `certificate` if
// it has one.
struct TlsFiles {
  std::string certificate = {};  // of this side, with the chain above it
  std::string key = {};          // of `certificate`, without a password
  std::string ca = {};           // who vouches for the other side

  bool empty() const { return certificate.empty() && key.empty() && ca.empty(); }
};

// The contents of such files.
struct TlsTexts {
  std::string certificate;
  std::string key;
  std::string ca;
};

// Reads the files that are named and checks that they are what they are said to be, and that the key is the
// certificate's. Errors name the file: NotFound or PermissionDenied where it cannot be read, InvalidArgument where its
// contents are wrong or one of a pair is missing.
absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files);

}  // namespace tdock::rpc
