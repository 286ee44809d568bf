// The server's side of TLS. For this module only.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/rpc/socket.h"
#include "core/rpc/tls.h"

namespace tdock::rpc {

// A server's certificate, and the CA for its clients' certificates. Thread-safe.
class TlsIdentity {
 public:
  // InvalidArgument, NotFound, PermissionDenied: what is wrong with which file.
  static absl::StatusOr<std::shared_ptr<const TlsIdentity>> Load(const TlsFiles& files);

  SSL_CTX* context() const { return context_.get(); }

 private:
  using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;

  explicit TlsIdentity(Context context) : context_(std::move(context)) {}

  const Context context_;
};

// One connection, over a non-blocking socket; may write only on threads that block signals. Not thread-safe.
class TlsSession {
 public:
  enum class Step {
    kDone,
    kBlocked,  // until the socket is readable or writable again
    kEnded,    // the client sends no more
    kFailed,   // permanently
  };
  struct Moved {
    Step step = Step::kFailed;
    size_t bytes = 0;  // when done
  };

  // Null if memory is exhausted.
  static std::unique_ptr<TlsSession> Make(const TlsIdentity& identity, Socket socket);

  // Must be done before any other call.
  Step Handshake();
  Moved Read(std::span<char> into);
  // After kBlocked, the next call must begin with the same bytes, possibly at another address.
  Moved Write(absl::string_view bytes);
  // Sends close_notify, if the socket has room for it, and shuts down sending.
  void EndSending();

  const Socket& socket() const { return socket_; }

 private:
  using Ssl = std::unique_ptr<SSL, decltype(&SSL_free)>;

  TlsSession(Socket socket, Ssl ssl) : socket_(std::move(socket)), ssl_(std::move(ssl)) {}

  Step StepOf(int result) const;

  Socket socket_;
  const Ssl ssl_;
};

}  // namespace tdock::rpc
