// A server of calls that are streams of bytes in both directions, over gRPC.
//
// A call has a method, messages from the client, messages to the client, and a status at the end. What the bytes mean
// is up to the handlers. A call that waits costs memory and no thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/watchdog.h"
#include "core/rpc/message.h"
#include "core/rpc/tls.h"

namespace tdock::rpc {

// Answers one call. Thread-safe, never blocks, and may outlive the call: then Send and Finish do nothing.
class CallSink {
 public:
  virtual ~CallSink() = default;

  // Queues a message; they go out in order. There is no limit: see queued_bytes().
  virtual void Send(Message message) = 0;
  // Ends the call after all that was sent. Only the first counts.
  virtual void Finish(const absl::Status& status) = 0;

  // Whether the call is over: finished, cancelled, or its connection lost.
  virtual bool gone() const = 0;
  // Of the messages that have not been handed to the connection.
  virtual int64_t queued_bytes() const = 0;

  // Between them, no message is read from the client, which is then held up as soon as the connection's buffers are
  // full. At most one message still comes after PauseReads().
  virtual void PauseReads() = 0;
  virtual void ResumeReads() = 0;
};

// Handles one call. Its methods are called one after another, never two at once, on the server's few threads: they must
// not block, and what they take long for holds up other calls, unless they call HandWaitingOver before. They may use
// their sink.
class CallHandler {
 public:
  virtual ~CallHandler() = default;

  // The bytes live until this returns. The next message is read when it has returned.
  virtual void OnMessage(Pieces message) = 0;
  // The client has sent everything.
  virtual void OnHalfClose() = 0;
  // A message has been handed to the connection: there may be room for more.
  virtual void OnSent() {}
  // The call is over; nothing is called afterwards. Without OnHalfClose before it, the client did not send everything.
  virtual void OnGone() = 0;
};

// To be called by a handler before it does what takes long, a tenth of a millisecond or more, so that another of the
// server's threads sees to other calls. Messages of 64 KiB and more are long by themselves. Does nothing on any other
// thread, and when repeated.
void HandWaitingOver();

// Makes the handler of a call. An error ends the call with it. Called on the server's threads, several at once.
using HandlerFactory = std::function<absl::StatusOr<std::shared_ptr<CallHandler>>(absl::string_view method,
                                                                                  std::shared_ptr<CallSink> sink)>;

struct StreamServerOptions {
  // "host:port", an IPv6 address in brackets. Port 0: any that is free.
  std::string listen = "127.0.0.1:0";
  TlsFiles tls = {};       // empty: plain TCP
  std::string token = {};  // what clients must show; empty: nothing
  // Allows to listen beyond the loopback interface without a token and without mutual TLS.
  bool insecure = false;

  int64_t max_message_bytes =
      kMaxMessageBytes;               // of one that comes in; a larger one ends its call with ResourceExhausted
  int max_concurrent_streams = 1024;  // per connection; further calls wait at the client

  // Told what the threads do; may be null.
  std::shared_ptr<Heartbeat> heartbeat = {};
};

// Thread-safe.
class StreamServer {
 public:
  virtual ~StreamServer() = default;  // shuts down at once

  // Starts to listen. Refused with FailedPrecondition: a host beyond the loopback interface when nothing keeps
  // strangers out. InvalidArgument: an address or a certificate that is wrong. Unavailable: an address that is in use.
  static absl::StatusOr<std::unique_ptr<StreamServer>> Start(const StreamServerOptions& options,
                                                             HandlerFactory factory);

  virtual int port() const = 0;
  // What whoever starts the server should know about its security, in sentences.
  virtual const std::vector<std::string>& warnings() const = 0;

  // New calls get Unavailable, and the standard health service says NOT_SERVING; those that run go on.
  virtual void StopAccepting() = 0;
  // Stops accepting and listening, lets the calls that run finish until the deadline, and cancels the rest;
  // connections whose clients read nothing are cut half a second later. Blocks until the last OnGone has returned; not
  // to be called by a handler. May be called again.
  virtual void Shutdown(absl::Time drain_deadline) = 0;
};

}  // namespace tdock::rpc
