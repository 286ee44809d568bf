// A server of HTTP/1.1.
//
//   client ──► head ──► admit ──► body ──► handler ──► Send()                    │ keep-alive: the next request
//                         │ refused            └─────► Begin() Write() … End()   │
//
// A client is gone when it closes its connection, or only its side of it, before it has all of its answer.
//
// A head that can be read in two ways, or asks for what this server does not do, is refused (framing.h), and nothing
// more is read from its connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/http/message.h"

namespace tdock::http {

// A request and its answer. Thread-safe. Dropped without an answer, it is answered with the status 500; dropped before
// End(), the connection is cut, so that the client knows.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual const Request& request() const = 0;
  // Frees the body of the request, which no longer counts for max_bodies_bytes: for answers that take long. Nobody may
  // read it meanwhile or later.
  virtual void DropBody() = 0;

  // The whole answer. Nothing happens if the client is gone or there is an answer, here and below.
  virtual void Send(Response response) = 0;

  // An answer in pieces: everything of `head` but its body.
  virtual void Begin(Response head) = 0;
  virtual void Write(absl::string_view piece) = 0;
  // `last` is written, however much is unread: nothing follows it.
  virtual void End(absl::string_view last = {}) = 0;

  // Written, and not yet taken by the system. Beyond ServerLimits::max_unread_bytes another Write() cuts the client
  // off; a writer who can wait does so.
  virtual size_t unread_bytes() const = 0;

  // Calls `call` once, without a lock, when the client is gone before it has its answer; at once if it is.
  virtual void OnGone(std::function<void()> call) = 0;
  // True once the client has gone without its answer, or the server has cut its connections: long work may stop.
  virtual bool gone() const = 0;

  // What Ended::note will be; what OnGone() calls may still say it.
  virtual void Note(std::string note) = 0;
};

// What became of a request.
struct Ended {
  std::string method = {}, path = {}, peer = {};
  int status = 0;  // 0: none was sent
  bool gone = false;
  uint64_t request_bytes = 0, sent_bytes = 0;  // of bodies; with heads
  absl::Duration duration = absl::ZeroDuration();
  std::string note = {};
};

struct ServerLimits {
  // Beyond it, the connection is closed that has waited longest for a request; another is refused if none waits.
  size_t max_connections = 4096;
  size_t max_waiting_requests = 1024;  // for a thread of handlers; beyond it, requests get the status 429
  size_t max_head_bytes = 32 << 10;
  uint64_t max_body_bytes = 16 << 20;
  uint64_t max_bodies_bytes = uint64_t{256} << 20;     // that arrive, or belong to requests without a whole answer
  size_t max_unread_bytes = 256 << 10;                 // of one answer
  size_t max_all_unread_bytes = size_t{256} << 20;     // beyond it, the client is cut off that has not read for longest
  absl::Duration request_timeout = absl::Seconds(30);  // for a request, once it has begun
  absl::Duration idle_timeout = absl::Seconds(75);     // between requests
  absl::Duration write_timeout = absl::Seconds(30);    // without a byte that the client reads
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0 picks a free one
  ServerLimits limits = {};
  int threads = 2;  // that handlers run on
  // True for requests whose handlers neither wait nor compute: they run on a thread of their own, so that dear requests
  // do not delay them. On the thread that serves all connections. Empty: false for all.
  std::function<bool(const Request&)> is_quick = {};
  // Called when the head of a request is there, before its body is read: a response refuses it. On the thread that
  // serves all connections, so it must be quick. Empty: all are admitted.
  std::function<std::optional<Response>(const Request&)> admit = {};
  // Makes the body of a response to a request that is not well-formed, too large or too late. Empty: plain text.
  std::function<Response(int status, absl::string_view message)> describe = {};
  // On that thread too, after each request.
  std::function<void(const Ended&)> on_end = {};
  // Likewise, a sentence for a log: connections cannot be accepted, or can again (AcceptFailures).
  std::function<void(const std::string&)> on_trouble = {};
};

using Handler = std::function<void(std::shared_ptr<Exchange>)>;

// Thread-safe.
class Server {
 public:
  // Unavailable, naming the address, if it cannot be listened on; InvalidArgument for a host that is no address of this
  // machine's.
  static absl::StatusOr<std::unique_ptr<Server>> Start(ServerOptions options, Handler handler);
  // Cuts all connections, and then returns when no handler is running; requests that have waited for a thread get none.
  // Exchanges may outlive it; their clients are gone.
  virtual ~Server() = default;

  virtual int port() const = 0;
  virtual size_t connections() const = 0;
  // For a thread of handlers, quick ones excepted.
  virtual size_t waiting_requests() const = 0;
  // Attempts to accept a connection that failed for lack of descriptors or memory, since the start.
  virtual int64_t accept_failures() const = 0;

  // Takes no more connections or requests, and waits until those in progress have their answers. False if some had none
  // within `limit`; their connections stay open.
  virtual bool Drain(absl::Duration limit) = 0;
};

}  // namespace tdock::http
