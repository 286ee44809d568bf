// A client of the server, and what all clients share. Internal to this module.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/base/work_queue.h"
#include "core/http/answer.h"
#include "core/http/server.h"

namespace tdock::http {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

class Connection;
class RequestParser;

// Connections in the order in which they came to wait.
using Queue = std::list<Connection*>;

// State of all connections. Used on the thread of `io`, but for what is guarded or atomic.
struct Hub : std::enable_shared_from_this<Hub> {
  Hub(ServerOptions given, Handler handle);

  Response Describe(int status, absl::string_view message) const;
  // The same, with the time after which the client may ask again.
  Response Busy(int status, absl::string_view message) const;
  bool IsQuick(const Request& request) const { return options.is_quick && options.is_quick(request); }
  // True if one more request, not a quick one, would be too many for the threads of handlers.
  bool IsFull() const { return waiting_requests >= options.limits.max_waiting_requests; }

  void Add(const std::shared_ptr<Connection>& connection) TDOCK_EXCLUDES(mu);
  void Remove(const std::shared_ptr<Connection>& connection) TDOCK_EXCLUDES(mu);
  void CloseAll();
  // Closes the connection that has waited longest for its client. False if none waits.
  bool MakeRoom();
  // Cuts off clients as long as all of them together have too much unread, but for the last one: one answer may have
  // any length.
  void CutSlowReaders();
  // Calls the handler on a thread of its kind, unless the client has gone by then.
  void Post(const Connection* owner, bool quick, std::shared_ptr<Exchange> exchange);

  const ServerOptions options;
  const Handler handler;
  asio::io_context io{1};
  std::unordered_set<std::shared_ptr<Connection>> open;
  Queue waiting;              // connections that wait for a request, for the rest of its head, or for their end
  Queue slow;                 // connections whose clients have to read before more can be sent
  uint64_t bodies_bytes = 0;  // that arrive, or that a handler reads
  bool draining = false;
  WorkQueue* work = nullptr;
  WorkQueue* quick_work = nullptr;  // null if no request is quick

  const std::shared_ptr<std::atomic<size_t>> all_unread = std::make_shared<std::atomic<size_t>>(0);
  std::atomic<size_t> waiting_requests = 0;

  mutable Mutex mu;
  CondVar changed;
  size_t count TDOCK_GUARDED_BY(mu) = 0;  // of `open`
};

// The place of a connection in a queue.
class QueuePlace {
 public:
  QueuePlace() = default;
  ~QueuePlace() { Leave(); }
  QueuePlace(const QueuePlace&) = delete;
  QueuePlace& operator=(const QueuePlace&) = delete;

  // At the end, unless it has a place there.
  void Enter(Queue& queue, Connection* connection) {
    if (queue_ == &queue) return;
    Leave();
    queue_ = &queue;
    at_ = queue.insert(queue.end(), connection);
  }
  void Leave() {
    if (queue_ != nullptr) queue_->erase(at_);
    queue_ = nullptr;
  }

 private:
  Queue* queue_ = nullptr;
  Queue::iterator at_ = {};
};

// One client. Everything happens on the thread of Hub::io.
class Connection final : public Recipient, public std::enable_shared_from_this<Connection> {
 public:
  Connection(Hub& hub, tcp::socket socket);
  ~Connection() override;

  void Start() { AwaitRequest(); }
  void Refuse(Response response);
  // Says to those who make the answer that the client is gone, and closes.
  void End(bool complete);
  void Close();
  // No further request: closes it if none is in progress.
  void Drain();
  void Wake() override {
    asio::post(hub_.io, [self = shared_from_this()] { self->Pump(); });
  }
  void BodyIsDropped(const Answer* answer) override {
    asio::post(hub_.io, [self = shared_from_this(), answer] {
      if (self->answer_.get() == answer) self->GiveBack();
    });
  }

 private:
  // Sends what the answer has.
  void Pump();
  void AwaitRequest();
  void ReadStart();
  void ReadHead();
  void OnHead(const ErrorCode& error);
  // The refusal of a request whose body is not worth reading.
  std::optional<Response> Judge(const Request& request) const;
  Response TooManyWait() const;
  void ReadBody();
  void OnBody(const ErrorCode& error);
  // Counts so many bytes for the body of the request; refuses the request if there is no room for them.
  bool Charge(uint64_t bytes);
  void GiveBack() { hub_.bodies_bytes -= std::exchange(body_bytes_, 0); }
  // Refuses a request that cannot be read, with the reason.
  void OnBadRequest(const ErrorCode& error);
  void Handle();
  void WatchClient();
  void LookForEnd();
  void WriteSome();
  void AwaitRoom();
  void FinishAnswer(bool keep_alive);
  void OnSlowRequest();
  void OnSlowReader() { End(false); }
  void Linger();
  void Discard();

  void Arm(absl::Duration limit, void (Connection::*then)());
  void Disarm() {
    ++armed_;
    timer_.cancel();
  }

  const std::shared_ptr<Hub> owner_;
  Hub& hub_;
  tcp::socket socket_;
  asio::steady_timer timer_, watch_;
  uint64_t armed_ = 0;  // counts Arm() and Disarm()
  QueuePlace waits_, slow_;
  std::string peer_;
  boost::beast::flat_buffer buffer_;
  std::unique_ptr<RequestParser> parser_;
  std::optional<Request> request_;  // whose head is there, and whose body is being read
  std::string continue_;            // "100 Continue" while it is sent
  std::shared_ptr<Answer> answer_;
  uint64_t body_bytes_ = 0;  // of the request, counted in Hub::bodies_bytes until the handler is done with them
  uint64_t answers_ = 0;
  std::string sending_;
  size_t sent_ = 0;
  bool last_ = false, keep_alive_ = false, skipped_line_ = false;
  bool writing_ = false, closed_ = false, idle_ = true, refused_ = false;
};

}  // namespace tdock::http
