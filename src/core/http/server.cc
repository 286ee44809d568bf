#include "core/http/server.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <chrono>
#include <thread>
#include <unordered_set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/work_queue.h"
#include "core/http/answer.h"

namespace tdock::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using Parser = beast::http::request_parser<beast::http::string_body>;

constexpr absl::Duration kLinger = absl::Seconds(2);  // for a client to read why it was refused
constexpr absl::Duration kRetryAccept = absl::Milliseconds(100);
// Between looks for the end of a client that has sent more than its request.
constexpr absl::Duration kLookForEnd = absl::Milliseconds(100);

absl::string_view View(beast::string_view text) { return {text.data(), text.size()}; }

class Connection;

// What connections share. Used on the thread of `io`, but for what is guarded.
struct Hub : std::enable_shared_from_this<Hub> {
  explicit Hub(ServerOptions given, Handler handle) : options(std::move(given)), handler(std::move(handle)) {}

  Response Describe(int status, absl::string_view message) const {
    if (options.describe) return options.describe(status, message);
    return {.status = status, .body = absl::StrCat(message, "\n"), .content_type = "text/plain"};
  }
  void Remove(const std::shared_ptr<Connection>& connection) TDOCK_EXCLUDES(mu);

  const ServerOptions options;
  const Handler handler;
  asio::io_context io{1};
  std::unordered_set<std::shared_ptr<Connection>> open;
  uint64_t bodies_bytes = 0;  // that arrive, or that a handler reads
  bool draining = false;
  WorkQueue* work = nullptr;

  mutable Mutex mu;
  CondVar changed;
  size_t count TDOCK_GUARDED_BY(mu) = 0;  // of `open`
};

// One client. Everything happens on the thread of Hub::io.
class Connection final : public Recipient, public std::enable_shared_from_this<Connection> {
 public:
  Connection(Hub& hub, tcp::socket socket)
      : owner_(hub.shared_from_this()), hub_(hub), socket_(std::move(socket)), timer_(hub.io), watch_(hub.io) {
    ErrorCode ignored;
    const tcp::endpoint peer = socket_.remote_endpoint(ignored);
    if (!ignored) peer_ = absl::StrCat(peer.address().to_string(ignored), ":", peer.port());
  }

  void Start() { AwaitRequest(); }
  void Refuse(Response response);
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
  void ReadHead();
  void OnHead(const ErrorCode& error);
  void ReadBody();
  void OnBody(const ErrorCode& error);
  // Counts so many bytes for the body of the request; refuses the request if there is no room for them.
  bool Charge(uint64_t bytes);
  void GiveBack() { hub_.bodies_bytes -= std::exchange(body_bytes_, 0); }
  // What is wrong with a request that cannot be read.
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
  void End(bool complete);
  Request HeadAsRequest() const;

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
  std::string peer_;
  beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  std::string continue_;  // "100 Continue" while it is sent
  std::shared_ptr<Answer> answer_;
  uint64_t body_bytes_ = 0;  // of the request, counted in Hub::bodies_bytes until the handler is done with them
  uint64_t answers_ = 0;
  std::string sending_;
  size_t sent_ = 0;
  bool last_ = false, keep_alive_ = false;
  bool writing_ = false, closed_ = false, idle_ = true, refused_ = false;
};

void Hub::Remove(const std::shared_ptr<Connection>& connection) {
  if (open.erase(connection) == 0) return;
  const MutexLock lock(mu);
  count = open.size();
  changed.NotifyAll();
}

void Connection::Arm(absl::Duration limit, void (Connection::*then)()) {
  timer_.expires_after(absl::ToChronoNanoseconds(limit));
  timer_.async_wait([self = shared_from_this(), number = ++armed_, then](const ErrorCode& error) {
    if (!error && number == self->armed_) (self.get()->*then)();
  });
}

void Connection::AwaitRequest() {
  idle_ = true;
  if (hub_.draining) return Close();
  if (buffer_.size() > 0) return ReadHead();
  Arm(hub_.options.limits.idle_timeout, &Connection::Close);
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const ErrorCode& error) {
    if (self->closed_) return;
    if (error) return self->Close();
    self->ReadHead();
  });
}

void Connection::ReadHead() {
  idle_ = false;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(hub_.options.limits.max_head_bytes));
  parser_->body_limit(hub_.options.limits.max_body_bytes);
  Arm(hub_.options.limits.request_timeout, &Connection::OnSlowRequest);
  beast::http::async_read_header(socket_, buffer_, *parser_,
                                 [self = shared_from_this()](const ErrorCode& error, size_t) { self->OnHead(error); });
}

void Connection::OnSlowRequest() {
  Refuse(hub_.Describe(408, absl::StrCat("the request was not complete after ",
                                         absl::FormatDuration(hub_.options.limits.request_timeout))));
}

void Connection::OnHead(const ErrorCode& error) {
  if (closed_ || refused_) return;
  if (error) return OnBadRequest(error);
  const auto& head = parser_->get();
  if (hub_.options.admit) {
    if (std::optional<Response> refusal = hub_.options.admit(HeadAsRequest())) return Refuse(*std::move(refusal));
  }
  parser_->eager(true);
  if (!Charge(parser_->content_length().value_or(0))) return;
  if (!absl::EqualsIgnoreCase(View(head[beast::http::field::expect]), "100-continue")) return ReadBody();
  continue_ = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(socket_, asio::buffer(continue_), [self = shared_from_this()](const ErrorCode& failed, size_t) {
    if (self->closed_ || self->refused_) return;
    if (failed) return self->Close();
    self->ReadBody();
  });
}

// A body in chunks counts as it arrives: what it will be is not known, and most are small.
void Connection::ReadBody() {
  if (parser_->is_done()) return OnBody({});
  beast::http::async_read_some(socket_, buffer_, *parser_, [self = shared_from_this()](const ErrorCode& error, size_t) {
    if (self->closed_ || self->refused_) return;
    if (error) return self->OnBody(error);
    if (self->Charge(self->parser_->get().body().size())) self->ReadBody();
  });
}

bool Connection::Charge(uint64_t bytes) {
  if (bytes <= body_bytes_) return true;
  const uint64_t more = bytes - body_bytes_;
  if (hub_.bodies_bytes + more > hub_.options.limits.max_bodies_bytes) {
    Response busy = hub_.Describe(503, "too many large requests at the same time; try again");
    busy.headers.emplace_back("Retry-After", "1");
    Refuse(std::move(busy));
    return false;
  }
  body_bytes_ = bytes;
  hub_.bodies_bytes += more;
  return true;
}

void Connection::OnBody(const ErrorCode& error) {
  if (closed_ || refused_) return;
  if (error) return OnBadRequest(error);
  Disarm();
  Handle();
}

void Connection::OnBadRequest(const ErrorCode& error) {
  using Problem = beast::http::error;
  const ServerLimits& limits = hub_.options.limits;
  if (error == Problem::body_limit) {
    return Refuse(
        hub_.Describe(413, absl::StrCat("the body of a request has at most ", limits.max_body_bytes, " bytes")));
  }
  if (error == Problem::header_limit || error == Problem::buffer_overflow) {
    return Refuse(
        hub_.Describe(431, absl::StrCat("the head of a request has at most ", limits.max_head_bytes, " bytes")));
  }
  if (error == Problem::bad_version) return Refuse(hub_.Describe(505, "this server speaks HTTP/1.0 and HTTP/1.1"));
  const bool is_http = error.category() == beast::http::make_error_code(Problem::bad_method).category();
  if (!is_http || error == Problem::end_of_stream || error == Problem::partial_message) return Close();
  Refuse(hub_.Describe(400, absl::StrCat("not a request of HTTP/1.1: ", error.message())));
}

Request Connection::HeadAsRequest() const {
  const auto& head = parser_->get();
  Request request{.method = std::string(View(head.method_string())), .peer = peer_};
  const absl::string_view target = View(head.target());
  const size_t query = target.find('?');
  request.path = std::string(target.substr(0, query));
  if (query != absl::string_view::npos) request.query = std::string(target.substr(query + 1));
  for (const auto& field : head) {
    request.headers.emplace_back(absl::AsciiStrToLower(View(field.name_string())), std::string(View(field.value())));
  }
  return request;
}

void Connection::Handle() {
  Request request = HeadAsRequest();
  request.body = std::move(parser_->get().body());
  const bool chunks = parser_->get().version() == 11;
  const bool keep_alive = parser_->get().keep_alive() && !hub_.draining;
  parser_.reset();
  answer_ = std::make_shared<Answer>(shared_from_this(), hub_.options.limits.max_unread_bytes, std::move(request),
                                     keep_alive, chunks);
  ++answers_;
  WatchClient();
  // The handler's copies keep a token of its own: when the last of them goes, nobody can answer any more.
  std::shared_ptr<Exchange> exchange(answer_.get(), [answer = answer_, hub = hub_.shared_from_this()](Exchange*) {
    answer->Abandon(hub->Describe(500, "the request was not answered"));
  });
  hub_.work->Post(this, [hub = hub_.shared_from_this(), exchange = std::move(exchange)] { hub->handler(exchange); });
}

// Says that the client is gone when its side of the connection has ended.
void Connection::WatchClient() {
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this(), number = answers_](const ErrorCode& error) {
    if (self->closed_ || self->answer_ == nullptr || self->answers_ != number) return;
    char byte = 0;
    const ssize_t size = ::recv(self->socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (error || size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) return self->End(false);
    if (size < 0) return self->WatchClient();
    self->LookForEnd();
  });
}

// Behind its request the client has sent more, as the next one. That stays unread for now, so the system holds back a
// client that sends much; but it also makes the socket readable all the time, and the end behind it has to be asked
// for.
void Connection::LookForEnd() {
  pollfd ended = {socket_.native_handle(), POLLRDHUP, 0};
  if (::poll(&ended, 1, 0) > 0) return End(false);
  watch_.expires_after(absl::ToChronoNanoseconds(kLookForEnd));
  watch_.async_wait([self = shared_from_this(), number = answers_](const ErrorCode& error) {
    if (error || self->closed_ || self->answer_ == nullptr || self->answers_ != number) return;
    self->LookForEnd();
  });
}

void Connection::Pump() {
  if (closed_ || answer_ == nullptr) return;
  if (writing_) {
    if (answer_->is_cut()) End(false);
    return;
  }
  Answer::Outgoing outgoing = answer_->Take();
  if (outgoing.cut) return End(false);
  sending_ = std::move(outgoing.bytes);
  sent_ = 0;
  last_ = outgoing.last;
  keep_alive_ = outgoing.keep_alive;
  if (!sending_.empty()) return WriteSome();
  if (last_) FinishAnswer(keep_alive_);
}

// Most writes end at once: those need no timer, and nothing to wait for.
void Connection::WriteSome() {
  writing_ = true;
  while (sent_ < sending_.size()) {
    ErrorCode error;
    const size_t bytes = socket_.write_some(asio::buffer(sending_.data() + sent_, sending_.size() - sent_), error);
    if (error == asio::error::would_block || error == asio::error::try_again) return AwaitRoom();
    if (error) return End(false);
    sent_ += bytes;
    if (answer_ != nullptr) answer_->Sent(bytes);
  }
  writing_ = false;
  sending_ = {};
  if (refused_) return Linger();
  if (last_) FinishAnswer(keep_alive_);
}

void Connection::AwaitRoom() {
  Arm(hub_.options.limits.write_timeout, &Connection::OnSlowReader);
  socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](const ErrorCode& error) {
    if (self->closed_) return;
    if (error) return self->End(false);
    self->Disarm();
    self->WriteSome();
    self->Pump();  // what has been added meanwhile
  });
}

void Connection::FinishAnswer(bool keep_alive) {
  const Ended ended = answer_->Close(true);
  answer_ = nullptr;
  GiveBack();
  if (hub_.options.on_end) hub_.options.on_end(ended);
  if (keep_alive) return AwaitRequest();
  Linger();
}

// The client may still be sending: to close at once would reset the connection before it has read the response.
void Connection::Linger() {
  idle_ = true;
  refused_ = true;
  ErrorCode ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  Arm(kLinger, &Connection::Close);
  Discard();
}

void Connection::Discard() {
  sending_.resize(4096);
  socket_.async_read_some(asio::buffer(sending_), [self = shared_from_this()](const ErrorCode& error, size_t) {
    if (self->closed_) return;
    if (error) return self->Close();
    self->Discard();
  });
}

void Connection::Refuse(Response response) {
  refused_ = true;
  Ended ended{.peer = peer_, .status = response.status};
  if (parser_ && parser_->is_header_done()) {
    Request request = HeadAsRequest();
    ended.method = std::move(request.method);
    ended.path = std::move(request.path);
  }
  ErrorCode ignored;
  socket_.cancel(ignored);
  sending_ = HeadOf(response, Framing::kLength, response.body.size(), false);
  if (ended.method != "HEAD") sending_ += response.body;
  ended.sent_bytes = sending_.size();
  sent_ = 0;
  writing_ = true;
  if (hub_.options.on_end) hub_.options.on_end(ended);
  WriteSome();
}

void Connection::Drain() {
  if (answer_ != nullptr) {
    answer_->StopKeepingAlive();
  } else if (idle_) {
    Close();
  }
}

void Connection::End(bool complete) {
  if (answer_ != nullptr) {
    const Ended ended = answer_->Close(complete);
    answer_ = nullptr;
    if (hub_.options.on_end) hub_.options.on_end(ended);
  }
  Close();
}

void Connection::Close() {
  if (std::exchange(closed_, true)) return;
  if (answer_ != nullptr) {
    const Ended ended = answer_->Close(false);
    answer_ = nullptr;
    if (hub_.options.on_end) hub_.options.on_end(ended);
  }
  GiveBack();
  Disarm();
  watch_.cancel();
  ErrorCode ignored;
  socket_.close(ignored);
  hub_.Remove(shared_from_this());
}

class ServerOfBeast final : public Server {
 public:
  ServerOfBeast(ServerOptions options, Handler handler)
      : hub_(std::make_shared<Hub>(std::move(options), std::move(handler))),
        acceptor_(hub_->io),
        retry_(hub_->io),
        work_(std::max(hub_->options.threads, 1)) {
    hub_->work = &work_;
  }
  ~ServerOfBeast() override {
    asio::post(hub_->io, [this] {
      StopAccepting();
      const auto open = hub_->open;
      for (const std::shared_ptr<Connection>& connection : open) connection->Close();
      guard_.reset();
    });
    if (thread_.joinable()) thread_.join();
    work_.AwaitIdle();
  }

  absl::Status Listen() {
    ErrorCode error;
    const ServerOptions& options = hub_->options;
    const std::string where = absl::StrCat(options.host, ":", options.port);
    const asio::ip::address address =
        asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, error);
    if (error) {
      return absl::InvalidArgumentError(
          absl::StrCat("the host '", options.host, "' is no address: give one such as 127.0.0.1, 0.0.0.0 or ::"));
    }
    const tcp::endpoint endpoint(address, static_cast<uint16_t>(options.port));
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) return absl::UnavailableError(absl::StrCat("cannot listen on ", where, ": ", error.message()));
    port_ = acceptor_.local_endpoint(error).port();
    return absl::OkStatus();
  }

  void Run() {
    guard_.emplace(hub_->io.get_executor());
    Accept();
    thread_ = std::thread([this] { hub_->io.run(); });
  }

  int port() const override { return port_; }
  size_t connections() const override {
    const MutexLock lock(hub_->mu);
    return hub_->count;
  }

  bool Drain(absl::Duration limit) override {
    const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(limit);
    asio::post(hub_->io, [this] {
      StopAccepting();
      hub_->draining = true;
      const auto open = hub_->open;
      for (const std::shared_ptr<Connection>& connection : open) connection->Drain();
      const MutexLock lock(hub_->mu);
      drained_ = true;
      hub_->changed.NotifyAll();
    });
    const MutexLock lock(hub_->mu);
    while (!drained_ || hub_->count > 0) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      hub_->changed.WaitUntil(hub_->mu, deadline);
    }
    return true;
  }

 private:
  void StopAccepting() {
    ErrorCode ignored;
    acceptor_.close(ignored);
    retry_.cancel();
  }

  void Accept() {
    acceptor_.async_accept([this](const ErrorCode& error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (error) return AcceptLater();
      ErrorCode ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      socket.non_blocking(true, ignored);
      auto connection = std::make_shared<Connection>(*hub_, std::move(socket));
      hub_->open.insert(connection);
      {
        const MutexLock lock(hub_->mu);
        hub_->count = hub_->open.size();
      }
      if (hub_->open.size() > hub_->options.limits.max_connections) {
        Response full = hub_->Describe(503, "too many connections; try again");
        full.headers.emplace_back("Retry-After", "1");
        connection->Refuse(std::move(full));
      } else {
        connection->Start();
      }
      Accept();
    });
  }

  // No descriptor is left, or the like: connections in the system's queue wait until one is.
  void AcceptLater() {
    retry_.expires_after(absl::ToChronoNanoseconds(kRetryAccept));
    retry_.async_wait([this](const ErrorCode& error) {
      if (!error && acceptor_.is_open()) Accept();
    });
  }

  const std::shared_ptr<Hub> hub_;
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  int port_ = 0;
  bool drained_ TDOCK_GUARDED_BY(hub_->mu) = false;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> guard_;
  std::thread thread_;
  WorkQueue work_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(ServerOptions options, Handler handler) {
  auto server = std::make_unique<ServerOfBeast>(std::move(options), std::move(handler));
  if (absl::Status listening = server->Listen(); !listening.ok()) return listening;
  server->Run();
  return server;
}

}  // namespace tdock::http
