#include "raw_client.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/net/endpoint.h"
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

// Takes all that a server may send, and drops data.
class RawClient::Sink final : public net::Recipient {
 public:
  uint32_t MaxBytes(uint8_t type) const override {
    if (type == net::kWelcome) return net::kMaxWelcomeBytes;
    return service::MaxBytesFromServer(type, true);
  }
  absl::Status OnData(uint64_t, uint64_t, std::span<const std::byte>) override { return absl::OkStatus(); }
};

RawClient::RawClient(const Target& target) : sink_(std::make_unique<Sink>()) {
  const absl::Time deadline = absl::Now() + kPatience;
  absl::string_view path = target.address;
  const bool is_local = absl::ConsumePrefix(&path, "unix:");
  absl::StatusOr<std::unique_ptr<FileDescriptor>> socket =
      is_local ? net::ConnectToPath(std::string(path), deadline)
               : net::ConnectTo(net::ParseEndpoint(target.address, "the server").value(), deadline);
  EXPECT_EQ(socket.status(), absl::OkStatus());
  if (target.tls_ca.empty()) {
    stream_ = net::MakePlainStream(*std::move(socket), is_local, is_local);
  } else {
    // One for all clients: many of them have little memory together.
    static const std::shared_ptr<const net::Tls> tls =
        net::Tls::Load({.ca = target.tls_ca}, net::Tls::Side::kClient).value();
    stream_ = net::MakeTlsStream(*std::move(socket), *tls, "127.0.0.1").value();
  }
  inbox_ = std::make_unique<net::Inbox>(*sink_);
  for (absl::StatusOr<bool> done; !*(done = stream_->Handshake());) {
    EXPECT_EQ(Await(stream_->awaits(), deadline), absl::OkStatus());
  }
}

RawClient::~RawClient() = default;

absl::Status RawClient::Await(short events, absl::Time deadline) {
  pollfd watched{.fd = stream_->fd(), .events = events, .revents = 0};
  const int64_t left_ms = absl::ToInt64Milliseconds(absl::Ceil(deadline - absl::Now(), absl::Milliseconds(1)));
  if (poll(&watched, 1, static_cast<int>(std::max<int64_t>(left_ms, 0))) > 0) return absl::OkStatus();
  return absl::Now() < deadline ? absl::OkStatus() : absl::DeadlineExceededError("the server does nothing");
}

bool RawClient::Send(absl::string_view bytes, absl::Duration within) {
  const absl::Time deadline = absl::Now() + within;
  while (!bytes.empty()) {
    const iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
    const absl::StatusOr<size_t> sent = stream_->Write({&piece, 1});
    if (!sent.ok() || (*sent == 0 && !Await(stream_->awaits(), deadline).ok())) return false;
    bytes.remove_prefix(*sent);
  }
  return true;
}

absl::StatusOr<RawClient::Message> RawClient::Receive(absl::Duration within) {
  const absl::Time deadline = absl::Now() + within;
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(const std::optional<net::Inbox::Message> message, inbox_->Next());
    if (message.has_value()) {
      if (message->header.type == net::kGoodbye) return net::ReasonIn(message->body);
      const bool has_file = message->header.type == net::kWelcome || message->header.type == service::kSegment;
      return Message{message->header, std::string(message->body), has_file ? stream_->TakeFile() : nullptr};
    }
    TDOCK_ASSIGN_OR_RETURN(const net::Inbox::Arrived arrived, inbox_->Read(*stream_));
    if (arrived == net::Inbox::Arrived::kNothing) TDOCK_RETURN_IF_ERROR(Await(stream_->awaits(), deadline));
  }
}

void RawClient::Hello(const std::string& session) {
  ASSERT_TRUE(Send(HelloMessage(session)));
  const absl::StatusOr<Message> message = Receive();
  ASSERT_EQ(message.status(), absl::OkStatus());
  ASSERT_EQ(message->header.type, net::kWelcome);
  absl::StatusOr<service::message::Welcome> welcome =
      service::Parse<service::message::Welcome>(message->body.substr(net::kConnectionIdBytes));
  ASSERT_EQ(welcome.status(), absl::OkStatus());
  welcome_ = *std::move(welcome);
  area_file_ = message->file;
  ASSERT_EQ(area_file_ != nullptr, stream_->passes_files());
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
    if (message.header.type == service::kSegment && !segment_.has_value()) segment_ = message;
    if (message.header.type != service::kReply || message.header.tag != call) continue;
    return service::Parse<service::message::Reply>(message.body);
  }
}

absl::StatusOr<service::message::Reply> RawClient::Call(const service::message::Request& request) {
  if (!SendCall(request)) return absl::UnavailableError("cannot send");
  return ReplyTo(request.call);
}

}  // namespace tdock::fault
