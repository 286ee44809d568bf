// A client of the server's gRPC methods that sends what it likes.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/rpc/stream_client.h"
#include "tdock.pb.h"
#include "tdock/batch.h"

namespace tdock::fault {

// A connection and a session of its own. Not thread-safe.
class RawRpc {
 public:
  // A failure of the test if nobody answers there.
  explicit RawRpc(const std::string& target);
  ~RawRpc();

  rpc::StreamClient& client() { return *client_; }
  const v1::Welcome& welcome() const { return welcome_; }
  // With the session and the next number.
  v1::Request NewRequest();

  // The bytes of a request, cut into messages as docs/wire-format.md says.
  static std::string BytesOf(const v1::Request& request, const Batch& batch = {});
  // One call with these bytes, and what it brings: the bytes of the answer.
  absl::StatusOr<std::string> CallWith(const std::string& bytes, absl::Duration within);
  // The same, understood.
  absl::StatusOr<v1::Reply> Call(const v1::Request& request, const Batch& batch = {});
  // A call that stays open. The callbacks are those of StreamClient::Open.
  std::unique_ptr<rpc::ClientStream> Open(const v1::Request& request, std::function<void(rpc::Pieces)> on_message,
                                          std::function<void(const absl::Status&)> on_end);

 private:
  std::unique_ptr<rpc::StreamClient> client_;
  std::unique_ptr<rpc::ClientStream> session_;
  v1::Welcome welcome_;
  uint64_t next_call_ = 1;
};

}  // namespace tdock::fault
