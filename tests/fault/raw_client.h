// A client of a server that sends what it likes.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "core/net/testing/raw_client.h"
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
// The client's side of TLS; null for a target without it.
std::shared_ptr<const net::Tls> TlsTo(const Target& target);

// Not thread-safe.
class RawClient : public net::RawClient {
 public:
  explicit RawClient(const Target& target);

  // Says hello, and keeps what the welcome brings.
  void Hello(const std::string& session = "");
  const service::message::Welcome& welcome() const { return welcome_; }
  const std::string& session() const { return welcome_.session; }
  // Over a Unix socket.
  int area_fd() const { return area_file_->fd(); }
  dock::UploadArea& area() { return *area_; }
  // The first segment that the server named, and its file.
  const std::optional<Message>& segment() const { return segment_; }
  const FileDescriptor& segment_file() const { return *segment_file_; }

  // A request with the next number.
  service::message::Request Numbered(service::message::Request request);
  bool SendCall(const service::message::Request& request);
  // The answer; what comes before is left out.
  absl::StatusOr<service::message::Reply> ReplyTo(uint64_t call);
  // A request and its answer.
  absl::StatusOr<service::message::Reply> Call(const service::message::Request& request);

 private:
  service::message::Welcome welcome_;
  std::shared_ptr<const FileDescriptor> area_file_;
  std::optional<dock::UploadArea> area_;
  std::optional<Message> segment_;
  std::shared_ptr<const FileDescriptor> segment_file_;
  uint64_t next_call_ = 1;
};

}  // namespace tdock::fault
