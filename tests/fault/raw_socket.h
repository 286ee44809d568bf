// A client of the server's Unix socket that sends what it likes.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "dock/service/wire/socket_channel.h"
#include "dock/service/wire/socket_message.h"
#include "dock/store/segment_view.h"
#include "tdock/batch.h"

namespace tdock::fault {

// A frame as it goes over the socket, and the data message with all of it.
std::string FrameOf(const Batch& batch);
std::string DataMessage(uint64_t call, const std::string& frame);

// Not thread-safe.
class RawSocket {
 public:
  // A failure of the test if nobody listens.
  explicit RawSocket(const std::string& path);

  // False where the server has ended the connection, or reads nothing for so long.
  bool Send(absl::string_view bytes, absl::Duration within);
  bool Send(absl::string_view bytes);
  // The next message, or how the connection ended: with the error of a goodbye, or Unavailable without one.
  // DeadlineExceeded.
  absl::StatusOr<service::SocketChannel::Message> Receive();
  absl::StatusOr<service::SocketChannel::Message> Receive(absl::Duration within);

  // Says hello, and keeps what the welcome brings.
  void Hello(const std::string& session = "");
  const service::message::Welcome& welcome() const { return welcome_; }
  const std::string& session() const { return welcome_.session; }
  int area_fd() const { return area_file_->fd(); }
  dock::UploadArea& area() { return *area_; }

  // A request with the session and the next number.
  service::message::Request Numbered(service::message::Request request);
  // A request and its answer; what else comes before is left out.
  bool SendCall(const service::message::Request& request);
  absl::StatusOr<service::message::Reply> ReplyTo(uint64_t call);
  absl::StatusOr<service::message::Reply> Call(const service::message::Request& request);
  // The first segment that the server named.
  const std::optional<service::SocketChannel::Message>& segment() const { return segment_; }

 private:
  std::unique_ptr<service::SocketChannel> channel_;
  service::message::Welcome welcome_;
  std::shared_ptr<const dock::FileDescriptor> area_file_;
  std::optional<dock::UploadArea> area_;
  std::optional<service::SocketChannel::Message> segment_;
  uint64_t next_call_ = 1;
};

}  // namespace tdock::fault
