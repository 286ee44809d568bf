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

namespace tdock {

// Times are those of absl::Now(). Errors: Unavailable where the connection is lost, or was never made; a server that
// ends it says why. DeadlineExceeded. Not thread-safe.
class SocketChannel {
 public:
  // PermissionDenied where another user listens, who is not root.
  static absl::StatusOr<std::unique_ptr<SocketChannel>> Connect(const std::string& path, absl::Time deadline);
  ~SocketChannel();
  SocketChannel(const SocketChannel&) = delete;
  SocketChannel& operator=(const SocketChannel&) = delete;

  // All bytes of the pieces, one after another.
  absl::Status Send(std::vector<absl::string_view> pieces, absl::Time deadline);

  struct Message {
    SocketHeader header;
    std::string body;
    // That came with it.
    std::shared_ptr<const FileDescriptor> file;
  };
  // The next message. A kGoodbye is returned as the error that it holds.
  absl::StatusOr<Message> Receive(absl::Time deadline);
  // One that is there already, or nothing.
  absl::StatusOr<std::optional<Message>> TryReceive();

  // Whether the server has closed it, as far as that can be known without asking.
  bool IsBroken() const;

 private:
  explicit SocketChannel(int fd) : fd_(fd) {}

  absl::Status AwaitEvent(short event, absl::Time deadline);
  // Reads what there is; false if there is nothing.
  absl::StatusOr<bool> Read();
  absl::StatusOr<std::optional<Message>> TakeMessage();

  const int fd_;
  std::string in_;
  size_t begin_ = 0;
  std::deque<std::shared_ptr<const FileDescriptor>> files_;
};

}  // namespace tdock
