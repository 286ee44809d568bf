// A server of calls that are streams of bytes in both directions, over gRPC.
//
// A call has a method, messages in both directions, and a status at the end. The handlers define what the bytes mean. A
// waiting call takes memory but no thread.
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
#include "core/base/accept_failures.h"
#include "core/base/watchdog.h"
#include "core/rpc/message.h"
#include "core/rpc/tls.h"

namespace tdock::rpc {

// Answers one call. Thread-safe, never blocks, and may outlive the call: then Send and Finish do nothing.
class CallSink {
 public:
  virtual ~CallSink() = default;

  // Queues a message; messages are sent in order. There is no limit: see queued_bytes().
  virtual void Send(Message message) = 0;
  // Ends the call after everything that was sent. Only the first call has an effect.
  virtual void Finish(const absl::Status& status) = 0;

  // Whether the call is over: finished, cancelled, or its connection lost.
  virtual bool gone() const = 0;
  // The bytes of messages that have not been handed to the connection.
  virtual int64_t queued_bytes() const = 0;

  // Between PauseReads and ResumeReads, no message is read from the client, which blocks once the connection's buffers
  // are full. At most one message may still arrive after PauseReads().
  virtual void PauseReads() = 0;
  virtual void ResumeReads() = 0;
};

// Handles one call. Its methods are called in sequence, never concurrently, on the server's few threads: they must not
// block, and long work delays other calls unless they call HandWaitingOver before. They may use their sink.
class CallHandler {
 public:
  virtual ~CallHandler() = default;

  // The bytes are valid until this returns. The next message is read after that.
  virtual void OnMessage(Pieces message) = 0;
  // The client has sent everything.
  virtual void OnHalfClose() = 0;
  // A message has been handed to the connection: there may be room for more.
  virtual void OnSent() {}
  // The call is over; nothing is called afterwards. Without OnHalfClose before it, the client did not send everything.
  virtual void OnGone() = 0;
};

// A handler calls it before work that takes long, a tenth of a millisecond or more, so that another of the server's
// threads serves other calls. Messages of 64 KiB and more count as long automatically. Has no effect on any other
// thread, or when repeated.
void HandWaitingOver();

// Makes the handler of a call. An error ends the call with that status. Called concurrently on the server's threads.
using HandlerFactory = std::function<absl::StatusOr<std::shared_ptr<CallHandler>>(absl::string_view method,
                                                                                  std::shared_ptr<CallSink> sink)>;

struct StreamServerOptions {
  // "host:port", an IPv6 address in brackets. Port 0: any free port.
  std::string listen = "127.0.0.1:0";
  TlsFiles tls = {};       // empty: plain TCP
  std::string token = {};  // that clients must present; empty: none
  // Allows listening beyond the loopback interface without a token and without mutual TLS.
  bool insecure = false;

  int64_t max_message_bytes =
      kMaxMessageBytes;               // the largest incoming message; a larger one ends its call with ResourceExhausted
  int max_concurrent_streams = 1024;  // per connection; further calls wait at the client

  // Records what the threads do; may be null.
  std::shared_ptr<Heartbeat> heartbeat = {};
  // Is told of connections that cannot be accepted; must outlive the server. May be null.
  AcceptFailures* failures = nullptr;
};

// Thread-safe.
class StreamServer {
 public:
  virtual ~StreamServer() = default;  // shuts down at once

  // Starts to listen. FailedPrecondition: a host beyond the loopback interface without authentication. InvalidArgument:
  // a wrong address or certificate. Unavailable: the address is in use.
  static absl::StatusOr<std::unique_ptr<StreamServer>> Start(const StreamServerOptions& options,
                                                             HandlerFactory factory);

  virtual int port() const = 0;
  // Warnings about the server's security, in sentences.
  virtual const std::vector<std::string>& warnings() const = 0;

  // New calls get Unavailable, and the standard health service reports NOT_SERVING; calls in progress continue.
  virtual void StopAccepting() = 0;
  // Stops accepting and listening, lets the calls in progress finish until the deadline, and cancels the rest;
  // connections whose clients read nothing are reset half a second later. Blocks until the last OnGone has returned;
  // must not be called by a handler. May be called again.
  virtual void Shutdown(absl::Time drain_deadline) = 0;
};

}  // namespace tdock::rpc
