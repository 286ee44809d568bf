// One connection to a server's Unix socket, used by one call at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "dock/service/wire/socket_message.h"
#include "dock/store/memory_file.h"

namespace tdock::service {

// Times are those of absl::Now(). Errors: Unavailable if the connection is lost or could not be made; if the server
// ended it, with the server's reason. DeadlineExceeded. Not thread-safe.
class SocketChannel {
 public:
  // PermissionDenied if another user than this one or root listens.
  static absl::StatusOr<std::unique_ptr<SocketChannel>> Connect(const std::string& path, absl::Time deadline);
  ~SocketChannel();
  SocketChannel(const SocketChannel&) = delete;
  SocketChannel& operator=(const SocketChannel&) = delete;

  // Sends the concatenated bytes of the pieces.
  absl::Status Send(std::vector<absl::string_view> pieces, absl::Time deadline);

  struct Message {
    SocketHeader header;
    std::string body;
    // The descriptor that came with the message.
    std::shared_ptr<const dock::FileDescriptor> file;
  };
  // The next message. A kGoodbye is returned as the error that it contains.
  absl::StatusOr<Message> Receive(absl::Time deadline);
  // A message that has arrived already, or nothing.
  absl::StatusOr<std::optional<Message>> TryReceive();

  // Whether the server has closed the connection, as far as is known locally.
  bool IsBroken() const;

 private:
  explicit SocketChannel(int fd) : fd_(fd) {}

  absl::Status AwaitEvent(short event, absl::Time deadline);
  // Reads available bytes; false if there are none.
  absl::StatusOr<bool> Read();
  absl::StatusOr<std::optional<Message>> TakeMessage();

  const int fd_;
  std::string in_;
  size_t begin_ = 0;
  std::deque<std::shared_ptr<const dock::FileDescriptor>> files_;
};

}  // namespace tdock::service
