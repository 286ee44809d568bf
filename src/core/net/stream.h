// The bytes of a connection: over a Unix socket, TCP or TLS.
#pragma once

#include <sys/uio.h>

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/file_descriptor.h"
#include "core/net/tls.h"

namespace tdock::net {

// A socket that never waits. Errors: Unavailable if the connection is over; then it is over for good. Not thread-safe.
class Stream {
 public:
  virtual ~Stream() = default;

  // True once bytes can be moved.
  virtual absl::StatusOr<bool> Handshake() { return true; }
  // Fills the pieces in order, as far as bytes have arrived; returns how many, 0 if there are none yet.
  virtual absl::StatusOr<size_t> Read(std::span<const iovec> into) = 0;
  // Sends bytes of the pieces, in order; returns how many, 0 if there is no room. After that, the next call must begin
  // with the same bytes, and have as many. `file` is sent along with the first byte, if files can be passed.
  virtual absl::StatusOr<size_t> Write(std::span<const iovec> pieces, const FileDescriptor* file = nullptr) = 0;
  // The event of poll() that the last call waits for, which did nothing.
  virtual short awaits() const = 0;
  // Sends no more.
  virtual void EndSending() = 0;

  // The file that was received first and not taken yet; null if there is none.
  virtual std::shared_ptr<const FileDescriptor> TakeFile() { return nullptr; }
  // The other side is a process of this machine.
  virtual bool passes_files() const = 0;
  // Damaged bytes could arrive: the stream itself would not notice them well enough.
  virtual bool needs_checksums() const = 0;
  int fd() const { return socket_->fd(); }

 protected:
  explicit Stream(std::unique_ptr<FileDescriptor> socket) : socket_(std::move(socket)) {}
  const std::unique_ptr<FileDescriptor> socket_;
};

// Over a connected, non-blocking socket. `receives_files`: over a Unix socket; otherwise those that come are dropped.
std::unique_ptr<Stream> MakePlainStream(std::unique_ptr<FileDescriptor> socket, bool is_local, bool receives_files);
// The same through TLS. `name`, for a client: the host that the server's certificate must be for. ResourceExhausted.
absl::StatusOr<std::unique_ptr<Stream>> MakeTlsStream(std::unique_ptr<FileDescriptor> socket, const Tls& tls,
                                                      const std::string& name);

}  // namespace tdock::net
