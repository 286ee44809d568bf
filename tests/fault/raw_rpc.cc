#include "raw_rpc.h"

#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "dock/service/remote/envelope.h"
#include "fault_fixture.h"

namespace tdock::fault {
namespace {

std::string Join(rpc::Pieces pieces) {
  std::string bytes;
  for (const auto& piece : pieces) bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  return bytes;
}

rpc::Message MessageOf(absl::string_view bytes) { return {Buffer::CopyOf(std::as_bytes(std::span(bytes)))}; }

std::vector<rpc::Message> MessagesOf(absl::string_view bytes) {
  constexpr size_t kMessageBytes = 1 << 20;
  std::vector<rpc::Message> messages;
  for (size_t at = 0; at < bytes.size(); at += kMessageBytes) {
    messages.push_back(MessageOf(bytes.substr(at, kMessageBytes)));
  }
  return messages;
}

}  // namespace

RawRpc::RawRpc(const std::string& target) {
  absl::StatusOr<std::unique_ptr<rpc::StreamClient>> client =
      rpc::StreamClient::Connect({.target = target, .connect_timeout = kPatience});
  EXPECT_EQ(client.status(), absl::OkStatus());
  client_ = *std::move(client);
  auto welcome = std::make_shared<std::promise<std::string>>();
  std::future<std::string> arrived = welcome->get_future();
  session_ = client_->Open(
      std::string(service::kSessionMethod), [welcome](rpc::Pieces pieces) { welcome->set_value(Join(pieces)); },
      [](const absl::Status&) {});
  session_->Send(MessageOf(service::Serialize(service::message::Hello{.protocol = 1})));
  EXPECT_EQ(arrived.wait_for(absl::ToChronoSeconds(kPatience)), std::future_status::ready);
  welcome_ = service::Parse<service::message::Welcome>(arrived.get()).value();
}

RawRpc::~RawRpc() = default;

service::message::Request RawRpc::Numbered(service::message::Request request) {
  request.session = welcome_.session;
  request.call = next_call_++;
  return request;
}

std::string RawRpc::BytesOf(const service::message::Request& request, const Batch& batch) {
  const absl::StatusOr<std::vector<rpc::Message>> messages = service::ToMessages(service::Serialize(request), batch);
  EXPECT_EQ(messages.status(), absl::OkStatus());
  std::string bytes;
  for (const rpc::Message& message : *messages) {
    for (const Buffer& piece : message) bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return bytes;
}

absl::StatusOr<std::string> RawRpc::CallWith(const std::string& bytes, absl::Duration within) {
  std::string answer;
  const rpc::CallResult result = client_->Call(
      service::kCallMethod, MessagesOf(bytes),
      [&](rpc::Pieces pieces) {
        answer += Join(pieces);
        return absl::OkStatus();
      },
      absl::Now() + within);
  if (!result.status.ok()) return result.status;
  return answer;
}

absl::StatusOr<service::message::Reply> RawRpc::Call(const service::message::Request& request, const Batch& batch) {
  TDOCK_ASSIGN_OR_RETURN(const std::string answer, CallWith(BytesOf(request, batch), kPatience));
  uint32_t length = 0;
  if (answer.size() < sizeof(length)) return absl::DataLossError("no length");
  std::memcpy(&length, answer.data(), sizeof(length));
  return service::Parse<service::message::Reply>(answer.substr(sizeof(length), length));
}

std::unique_ptr<rpc::ClientStream> RawRpc::Open(const service::message::Request& request,
                                                std::function<void(rpc::Pieces)> on_message,
                                                std::function<void(const absl::Status&)> on_end) {
  auto stream = client_->Open(std::string(service::kCallMethod), std::move(on_message), std::move(on_end));
  for (rpc::Message& message : MessagesOf(BytesOf(request))) stream->Send(std::move(message));
  stream->HalfClose();
  return stream;
}

}  // namespace tdock::fault
