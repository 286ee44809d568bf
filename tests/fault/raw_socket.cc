#include "raw_socket.h"

#include <gtest/gtest.h>

#include <utility>

#include "core/base/status.h"
#include "fault_fixture.h"
#include "tdock/frame.h"

namespace tdock::fault {

std::string FrameOf(const Batch& batch) {
  const EncodedFrame frame = EncodeFrame(MetaBatch(batch), {}, FrameChecksums::kNone).value();
  std::string bytes;
  for (absl::string_view piece : frame.Pieces()) bytes.append(piece.data(), piece.size());
  return bytes;
}

std::string DataMessage(uint64_t call, const std::string& frame) {
  std::string bytes;
  service::AppendHeader(service::SocketMessage::kData, call, frame.size(), &bytes);
  return bytes + frame;
}

RawSocket::RawSocket(const std::string& path) {
  absl::StatusOr<std::unique_ptr<service::SocketChannel>> channel =
      service::SocketChannel::Connect(path, absl::Now() + kPatience);
  EXPECT_EQ(channel.status(), absl::OkStatus());
  channel_ = *std::move(channel);
}

bool RawSocket::Send(absl::string_view bytes, absl::Duration within) {
  return channel_->Send({bytes}, absl::Now() + within).ok();
}

bool RawSocket::Send(absl::string_view bytes) { return Send(bytes, kPatience); }

absl::StatusOr<service::SocketChannel::Message> RawSocket::Receive() { return Receive(kPatience); }

absl::StatusOr<service::SocketChannel::Message> RawSocket::Receive(absl::Duration within) {
  return channel_->Receive(absl::Now() + within);
}

void RawSocket::Hello(const std::string& session) {
  const service::message::Hello hello{.protocol = 1, .session = session};
  ASSERT_TRUE(Send(ControlMessage(service::SocketMessage::kHello, 0, hello)));
  const absl::StatusOr<service::SocketChannel::Message> message = Receive();
  ASSERT_EQ(message.status(), absl::OkStatus());
  ASSERT_EQ(message->header.type, service::SocketMessage::kWelcome);
  absl::StatusOr<service::message::Welcome> welcome = service::Parse<service::message::Welcome>(message->body);
  ASSERT_EQ(welcome.status(), absl::OkStatus());
  welcome_ = *std::move(welcome);
  area_file_ = message->file;
  absl::StatusOr<dock::UploadArea> area =
      dock::UploadArea::Map(area_fd(), welcome_.upload_slots, welcome_.upload_slot_bytes);
  ASSERT_EQ(area.status(), absl::OkStatus());
  area_ = *std::move(area);
}

service::message::Request RawSocket::Numbered(service::message::Request request) {
  request.session = session();
  request.call = next_call_++;
  return request;
}

bool RawSocket::SendCall(const service::message::Request& request) {
  return Send(ControlMessage(service::SocketMessage::kCall, request.call, request));
}

absl::StatusOr<service::message::Reply> RawSocket::ReplyTo(uint64_t call) {
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(service::SocketChannel::Message message, Receive());
    if (message.header.type == service::SocketMessage::kSegment && !segment_.has_value()) segment_ = message;
    if (message.header.type != service::SocketMessage::kReply || message.header.tag != call) continue;
    return service::Parse<service::message::Reply>(message.body);
  }
}

absl::StatusOr<service::message::Reply> RawSocket::Call(const service::message::Request& request) {
  if (!SendCall(request)) return absl::UnavailableError("cannot send");
  return ReplyTo(request.call);
}

}  // namespace tdock::fault
