#include "raw_client.h"

#include <utility>

#include "core/base/status.h"
#include "tdock/frame.h"

namespace tdock::fault {

std::string FrameOf(const Batch& batch) {
  const EncodedFrame frame = EncodeFrame(MetaBatch(batch), {}, FrameChecksums::kNone).value();
  std::string bytes;
  for (absl::string_view piece : frame.Pieces()) bytes.append(piece.data(), piece.size());
  return bytes;
}

std::string DataMessages(uint64_t call, absl::string_view frame) {
  constexpr size_t kMost = net::kMaxDataBytes - sizeof(net::DataPrefix);
  std::string bytes;
  for (size_t at = 0; at < frame.size(); at += kMost) {
    const absl::string_view part = frame.substr(at, kMost);
    const net::DataPrefix prefix{.offset = at};
    bytes += net::MessageOf(net::kData, call,
                            std::string(reinterpret_cast<const char*>(&prefix), sizeof(prefix)) + std::string(part));
  }
  return bytes;
}

std::string HelloMessage(const std::string& session, uint32_t protocol) {
  const net::Hello hello{.protocol = protocol, .rest = service::Serialize(service::message::Hello{.session = session})};
  return net::MessageOf(net::kHello, 0, Encode(hello));
}

std::shared_ptr<const net::Tls> TlsTo(const Target& target) {
  if (target.tls_ca.empty()) return nullptr;
  // One for all clients: many of them have little memory together.
  static const std::shared_ptr<const net::Tls> tls =
      net::Tls::Load({.ca = target.tls_ca}, net::Tls::Side::kClient).value();
  return tls;
}

namespace {

uint32_t MaxBytes(uint8_t type) {
  return type == net::kWelcome ? net::kMaxWelcomeBytes : service::MaxBytesFromServer(type, true);
}

}  // namespace

RawClient::RawClient(const Target& target) : net::RawClient(target.address, TlsTo(target), "127.0.0.1", &MaxBytes) {}

void RawClient::Hello(const std::string& session) {
  ASSERT_TRUE(Send(HelloMessage(session)));
  const absl::StatusOr<Message> message = Receive();
  ASSERT_EQ(message.status(), absl::OkStatus());
  ASSERT_EQ(message->header.type, net::kWelcome);
  absl::StatusOr<service::message::Welcome> welcome =
      service::Parse<service::message::Welcome>(message->body.substr(net::kConnectionIdBytes));
  ASSERT_EQ(welcome.status(), absl::OkStatus());
  welcome_ = *std::move(welcome);
  area_file_ = stream().TakeFile();
  ASSERT_EQ(area_file_ != nullptr, stream().passes_files());
  if (area_file_ == nullptr) return;
  absl::StatusOr<dock::UploadArea> area =
      dock::UploadArea::Map(area_fd(), welcome_.upload_slots, welcome_.upload_slot_bytes);
  ASSERT_EQ(area.status(), absl::OkStatus());
  area_ = *std::move(area);
}

service::message::Request RawClient::Numbered(service::message::Request request) {
  request.call = next_call_++;
  return request;
}

bool RawClient::SendCall(const service::message::Request& request) {
  return Send(ControlMessage(service::kCall, request.call, request));
}

absl::StatusOr<service::message::Reply> RawClient::ReplyTo(uint64_t call) {
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(Message message, Receive());
    if (message.header.type == service::kSegment) {
      const std::shared_ptr<const FileDescriptor> file = stream().TakeFile();
      if (!segment_.has_value()) segment_ = message, segment_file_ = file;
    }
    if (message.header.type != service::kReply || message.header.tag != call) continue;
    return service::Parse<service::message::Reply>(message.body);
  }
}

absl::StatusOr<service::message::Reply> RawClient::Call(const service::message::Request& request) {
  if (!SendCall(request)) return absl::UnavailableError("cannot send");
  return ReplyTo(request.call);
}

}  // namespace tdock::fault
