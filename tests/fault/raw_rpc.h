// A client of the server's gRPC methods that sends what it likes.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/rpc/stream_client.h"
#include "dock/service/wire/messages.h"
#include "tdock/batch.h"

namespace tdock::fault {

// A connection and a session of its own. Not thread-safe.
class RawRpc {
 public:
  // A failure of the test if nobody answers there.
  explicit RawRpc(const std::string& target);
  ~RawRpc();

  rpc::StreamClient& client() { return *client_; }
  const service::message::Welcome& welcome() const { return welcome_; }
  // A request with the session and the next number.
  service::message::Request Numbered(service::message::Request request);

  // The bytes of a request, cut into messages as docs/wire-format.md says.
  static std::string BytesOf(const service::message::Request& request, const Batch& batch = {});
  // One call with these bytes, and what it brings: the bytes of the answer.
  absl::StatusOr<std::string> CallWith(const std::string& bytes, absl::Duration within);
  // The same, understood.
  absl::StatusOr<service::message::Reply> Call(const service::message::Request& request, const Batch& batch = {});
  // A call that stays open. The callbacks are those of StreamClient::Open.
  std::unique_ptr<rpc::ClientStream> Open(const service::message::Request& request,
                                          std::function<void(rpc::Pieces)> on_message,
                                          std::function<void(const absl::Status&)> on_end);

 private:
  std::unique_ptr<rpc::StreamClient> client_;
  std::unique_ptr<rpc::ClientStream> session_;
  service::message::Welcome welcome_;
  uint64_t next_call_ = 1;
};

}  // namespace tdock::fault
