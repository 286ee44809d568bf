// A client of a server that sends what it likes.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "core/net/inbox.h"
#include "core/net/stream.h"
#include "dock/service/wire/dock_message.h"
#include "dock/store/segment_view.h"
#include "fault_fixture.h"
#include "tdock/batch.h"

namespace tdock::fault {

// A frame as it is sent, and the data messages with all of it, without checksums.
std::string FrameOf(const Batch& batch);
std::string DataMessages(uint64_t call, absl::string_view frame);
// A hello for a dock server.
std::string HelloMessage(const std::string& session = "", uint32_t protocol = net::kProtocol);

// Not thread-safe.
class RawClient {
 public:
  // A failure of the test if nobody listens.
  explicit RawClient(const Target& target);
  ~RawClient();

  // False if the server has ended the connection, or reads nothing for so long.
  bool Send(absl::string_view bytes, absl::Duration within = kPatience);

  struct Message {
    net::MessageHeader header;
    std::string body;
    std::shared_ptr<const FileDescriptor> file;
  };
  // The next message other than data, or how the connection ended: with the error of a goodbye, or Unavailable without
  // one. DeadlineExceeded.
  absl::StatusOr<Message> Receive(absl::Duration within = kPatience);

  // Says hello, and keeps what the welcome brings.
  void Hello(const std::string& session = "");
  const service::message::Welcome& welcome() const { return welcome_; }
  const std::string& session() const { return welcome_.session; }
  // Over a Unix socket.
  int area_fd() const { return area_file_->fd(); }
  dock::UploadArea& area() { return *area_; }
  // The first segment that the server named.
  const std::optional<Message>& segment() const { return segment_; }

  // A request with the next number.
  service::message::Request Numbered(service::message::Request request);
  bool SendCall(const service::message::Request& request);
  // The answer; what comes before is left out.
  absl::StatusOr<service::message::Reply> ReplyTo(uint64_t call);
  // A request and its answer.
  absl::StatusOr<service::message::Reply> Call(const service::message::Request& request);

 private:
  class Sink;

  absl::Status Await(short events, absl::Time deadline);

  std::unique_ptr<net::Stream> stream_;
  std::unique_ptr<Sink> sink_;
  std::unique_ptr<net::Inbox> inbox_;
  service::message::Welcome welcome_;
  std::shared_ptr<const FileDescriptor> area_file_;
  std::optional<dock::UploadArea> area_;
  std::optional<Message> segment_;
  uint64_t next_call_ = 1;
};

}  // namespace tdock::fault
