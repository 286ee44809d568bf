// Certificates and keys from files.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

struct ssl_ctx_st;  // OpenSSL's

namespace tdock::net {

// Paths of PEM files; empty: not given. A server needs `certificate` and `key`, and requires a certificate of each
// client if it has a `ca` (mutual TLS). A client trusts servers whose certificate `ca` has signed, and presents
// `certificate` if it has one.
struct TlsFiles {
  std::string certificate = {};  // of this side, with its chain
  std::string key = {};          // of `certificate`, without a password
  std::string ca = {};           // CA certificates to verify the other side with

  bool empty() const { return certificate.empty() && key.empty() && ca.empty(); }
};

// One side's settings for TLS 1.2 and newer. Immutable, so thread-safe.
class Tls {
 public:
  enum class Side { kServer, kClient };
  // Errors name the file: NotFound or PermissionDenied if it cannot be read, InvalidArgument if its contents are wrong
  // or one of a pair is missing.
  static absl::StatusOr<std::shared_ptr<const Tls>> Load(const TlsFiles& files, Side side);

  ssl_ctx_st* context() const { return context_.get(); }
  Side side() const { return side_; }

 private:
  Tls(std::shared_ptr<ssl_ctx_st> context, Side side) : context_(std::move(context)), side_(side) {}

  const std::shared_ptr<ssl_ctx_st> context_;
  const Side side_;
};

}  // namespace tdock::net
