// A client of StreamServer, with one connection that is made again when it is lost.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/rpc/message.h"
#include "core/rpc/tls.h"

namespace tdock::rpc {

struct StreamClientOptions {
  std::string target = {};           // "host:port" of the server
  TlsFiles tls = {};                 // empty: plain TCP
  std::string tls_server_name = {};  // of the server's certificate, if not the host
  std::string token = {};            // empty: none
  absl::Duration connect_timeout = absl::Seconds(10);
  int64_t max_message_bytes =
      kMaxMessageBytes;  // of one that comes in; a larger one ends its call with ResourceExhausted
};

struct CallResult {
  absl::Status status;
  // False only if the server cannot have seen anything of the call, so that repeating it is safe.
  bool sent = false;
};

// A call that stays open, for messages in both directions. Thread-safe.
class ClientStream {
 public:
  // Cancels the call if it runs, and waits until its callbacks have returned; so it must not be destroyed in one.
  virtual ~ClientStream() = default;

  // Queues a message; they go out in order. False if the call is over, which its `on_end` explains.
  virtual bool Send(Message message) = 0;
  // Nothing more will be sent.
  virtual void HalfClose() = 0;
  // Of the messages that have not been handed to the connection.
  virtual int64_t queued_bytes() const = 0;
};

// Thread-safe. Errors of calls, besides those that handlers give: Unavailable where the connection was refused or lost,
// DeadlineExceeded, Unauthenticated, ResourceExhausted for a message beyond a limit.
class StreamClient {
 public:
  virtual ~StreamClient() = default;  // after its calls and streams

  // Waits until the connection stands. InvalidArgument, NotFound: a target or file that is wrong. Unavailable: no
  // connection within the time-out, and why.
  static absl::StatusOr<std::unique_ptr<StreamClient>> Connect(const StreamClientOptions& options);

  // One call, from a thread that waits for its end: sends the messages and gives each answer to `on_message`, on this
  // thread. An error of `on_message` cancels the call and is its status.
  virtual CallResult Call(absl::string_view method, std::span<const Message> messages,
                          const std::function<absl::Status(Pieces)>& on_message, absl::Time deadline) = 0;

  // Ends the calls and streams that run with Cancelled.
  virtual void CancelAll() = 0;

  // A call without a deadline. The callbacks are called one after another on a thread of the client's and must not
  // block; `on_end` is called exactly once, as the last. The next message is read when `on_message` has returned.
  virtual std::unique_ptr<ClientStream> Open(absl::string_view method, std::function<void(Pieces)> on_message,
                                             std::function<void(const absl::Status&)> on_end) = 0;
};

}  // namespace tdock::rpc
