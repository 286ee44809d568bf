// A connection that has not been admitted yet. For this module only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "core/rpc/admission.h"
#include "core/rpc/socket.h"
#include "core/rpc/tls_session.h"

namespace tdock::rpc {

// A connection that was admitted.
struct Admitted {
  Socket socket = {};                    // of plain TCP, nothing read from it
  std::unique_ptr<TlsSession> tls = {};  // or TLS,
  std::string received = {};             // from which this was read
};

// Reads no more from a socket than admission needs: over plain TCP it only peeks, so that gRPC reads from the start.
// Not thread-safe.
class PendingConnection {
 public:
  enum class Next {
    kStay,
    kLeave,  // it has its answer, and stays open a little longer so that the client can read it
    kAdmit,
    kClose,
  };

  // Over plain TCP without an identity. The rules outlive it; the socket does not block.
  PendingConnection(const AdmissionRules& rules, const TlsIdentity* identity, Socket socket);

  // Something has happened to the socket; `ended`: the client sends no more. `scratch` has Admission::kMostBytes.
  Next Advance(bool ended, std::span<char> scratch);
  bool leaving() const { return leaving_; }
  // After kAdmit.
  Admitted Take();

 private:
  int fd() const { return tls_ == nullptr ? socket_.get() : tls_->socket().get(); }

  // Whether the TLS handshake is done, or none is needed.
  bool ShakeHands();
  // A client that has not made its request yet may wait for the server's settings. If the client has made its request
  // and is gone, its system would reset the connection in answer, and gRPC would not read that request.
  bool Greet();
  // What has come so far.
  absl::string_view LookAtPlain(std::span<char> scratch);
  absl::string_view LookThroughTls(std::span<char> scratch);
  // Whether all of it went.
  bool Send(absl::string_view bytes);
  Next Leave(std::span<char> scratch);
  Next Discard(std::span<char> scratch);

  Socket socket_;
  std::unique_ptr<TlsSession> tls_;
  Admission admission_;
  bool failed_ = false;
  bool shaken_hands_ = false;
  bool greeted_ = false;
  bool leaving_ = false;
  std::string received_;  // over TLS
  size_t discarded_bytes_ = 0;
};

}  // namespace tdock::rpc
