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

// What a server shows, and whom it lets in. Thread-safe.
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

// One connection, over a socket that does not block; may write on threads without signals only. Not thread-safe.
class TlsSession {
 public:
  enum class Step {
    kDone,
    kBlocked,  // until the socket is readable or writable again
    kEnded,    // the client sends no more
    kFailed,   // for good
  };
  struct Moved {
    Step step = Step::kFailed;
    size_t bytes = 0;  // when done
  };

  // Null for want of memory.
  static std::unique_ptr<TlsSession> Make(const TlsIdentity& identity, Socket socket);

  // Until it is done, nothing else is to be called.
  Step Handshake();
  Moved Read(std::span<char> into);
  // After kBlocked, the next call must begin with the same bytes, wherever they are then.
  Moved Write(absl::string_view bytes);
  // Says that no more will come, if the socket has room for that, and ends sending.
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
