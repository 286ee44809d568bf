// A client of StreamServer, with one connection, which is made again when it is lost.
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
  std::string tls_server_name = {};  // the name in the server's certificate, if it is not the host
  std::string token = {};            // empty: none
  // Hands messages of streams over at once, with a thread that sleeps for them; otherwise within 20 ms, which leaves
  // the process's calls alone: see StreamEvents.
  bool prompt_streams = false;
  absl::Duration connect_timeout = absl::Seconds(10);
  int64_t max_message_bytes =
      kMaxMessageBytes;  // the largest incoming message; a larger one ends its call with ResourceExhausted
};

struct CallResult {
  absl::Status status;
  // False only if the server cannot have seen any part of the call, so that repeating it is safe.
  bool sent = false;
};

// A long-lived call, for messages in both directions. Thread-safe.
class ClientStream {
 public:
  // Cancels the call if it is running, and waits until its callbacks have returned; so it must not be destroyed in one.
  virtual ~ClientStream() = default;

  // Queues a message; messages are sent in order. False if the call is over; `on_end` tells why.
  virtual bool Send(Message message) = 0;
  // Nothing more will be sent.
  virtual void HalfClose() = 0;
  // The bytes of messages that have not been handed to the connection.
  virtual int64_t queued_bytes() const = 0;
};

// Thread-safe. Errors of calls, besides those of handlers: Unavailable if the connection was refused or lost,
// DeadlineExceeded, Unauthenticated, ResourceExhausted for a message beyond a limit.
class StreamClient {
 public:
  virtual ~StreamClient() = default;  // after its calls and streams

  // Waits until there is a connection. InvalidArgument, NotFound: a wrong target or file. Unavailable: no connection
  // within the timeout, and the reason.
  static absl::StatusOr<std::unique_ptr<StreamClient>> Connect(const StreamClientOptions& options);

  // One call, which blocks until its end: sends the messages and passes each response to `on_message`, on this thread.
  // An error of `on_message` cancels the call and becomes its status.
  virtual CallResult Call(absl::string_view method, std::span<const Message> messages,
                          const std::function<absl::Status(Pieces)>& on_message, absl::Time deadline) = 0;

  // Ends the calls and streams in progress with Cancelled.
  virtual void CancelAll() = 0;

  // A call without a deadline. The callbacks are called in sequence on a thread of the client's and must not block;
  // `on_end` is called exactly once, as the last. The next message is read when `on_message` has returned.
  virtual std::unique_ptr<ClientStream> Open(absl::string_view method, std::function<void(Pieces)> on_message,
                                             std::function<void(const absl::Status&)> on_end) = 0;
};

}  // namespace tdock::rpc
