#include "core/http/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/http/framing.h"
#include "core/http/request_parser.h"

namespace tdock::http {
namespace {

using Problem = boost::beast::http::error;

constexpr absl::Duration kLinger = absl::Seconds(2);  // for a client to read why it was refused
// Between looks for the end of a client that has sent more than its request.
constexpr absl::Duration kLookForEnd = absl::Milliseconds(100);
constexpr size_t kStartBytes = 4096;     // read at once of a request that begins
constexpr size_t kReadBytes = 64 << 10;  // of a body; with max_head_bytes, all that is kept of what is not parsed

absl::string_view View(const boost::beast::flat_buffer& buffer) {
  return {static_cast<const char*>(buffer.data().data()), buffer.size()};
}

}  // namespace

Hub::Hub(ServerOptions given, Handler handle) : options(std::move(given)), handler(std::move(handle)) {}

Response Hub::Describe(int status, absl::string_view message) const {
  if (options.describe) return options.describe(status, message);
  return {.status = status, .body = absl::StrCat(message, "\n"), .content_type = "text/plain"};
}

Response Hub::Busy(int status, absl::string_view message) const {
  Response busy = Describe(status, absl::StrCat(message, "; try again"));
  busy.headers.emplace_back("Retry-After", "1");
  return busy;
}

void Hub::Add(const std::shared_ptr<Connection>& connection) {
  open.insert(connection);
  const MutexLock lock(mu);
  count = open.size();
}

void Hub::Remove(const std::shared_ptr<Connection>& connection) {
  if (open.erase(connection) == 0) return;
  const MutexLock lock(mu);
  count = open.size();
  changed.NotifyAll();
}

void Hub::CloseAll() {
  const auto all = open;
  for (const std::shared_ptr<Connection>& connection : all) connection->Close();
}

bool Hub::MakeRoom() {
  if (waiting.empty()) return false;
  waiting.front()->Close();
  return true;
}

void Hub::CutSlowReaders() {
  while (*all_unread > options.limits.max_all_unread_bytes && slow.size() > 1) slow.front()->End(false);
}

void Hub::Post(const Connection* owner, bool quick, std::shared_ptr<Exchange> exchange) {
  if (!quick) ++waiting_requests;
  (quick ? quick_work : work)->Post(owner, [hub = shared_from_this(), quick, exchange = std::move(exchange)] {
    if (!quick) --hub->waiting_requests;
    if (!exchange->gone()) hub->handler(exchange);
  });
}

Connection::Connection(Hub& hub, tcp::socket socket)
    : owner_(hub.shared_from_this()),
      hub_(hub),
      socket_(std::move(socket)),
      timer_(hub.io),
      watch_(hub.io),
      buffer_(hub.options.limits.max_head_bytes + kReadBytes) {
  ErrorCode ignored;
  const tcp::endpoint peer = socket_.remote_endpoint(ignored);
  if (!ignored) peer_ = absl::StrCat(peer.address().to_string(ignored), ":", peer.port());
}

Connection::~Connection() = default;

void Connection::Arm(absl::Duration limit, void (Connection::*then)()) {
  timer_.expires_after(absl::ToChronoNanoseconds(limit));
  timer_.async_wait([self = shared_from_this(), number = ++armed_, then](const ErrorCode& error) {
    if (!error && number == self->armed_) (self.get()->*then)();
  });
}

void Connection::AwaitRequest() {
  idle_ = true;
  if (hub_.draining) return Close();
  waits_.Enter(hub_.waiting, this);
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
  Arm(hub_.options.limits.request_timeout, &Connection::OnSlowRequest);
  ReadStart();
}

// One empty line before a request is passed over (RFC 9112, section 2.2): some clients send it behind a body.
void Connection::ReadStart() {
  const absl::string_view start = View(buffer_);
  if (start.empty() || start == "\r") {
    socket_.async_read_some(buffer_.prepare(kStartBytes),
                            [self = shared_from_this()](const ErrorCode& error, size_t bytes) {
                              if (self->closed_ || self->refused_) return;
                              if (error) return self->Close();
                              self->buffer_.commit(bytes);
                              self->ReadStart();
                            });
    return;
  }
  if (absl::StartsWith(start, "\r\n") && !std::exchange(skipped_line_, true)) {
    buffer_.consume(2);
    return buffer_.size() > 0 ? ReadStart() : AwaitRequest();
  }
  const ServerLimits& limits = hub_.options.limits;
  parser_ = std::make_unique<RequestParser>(limits.max_head_bytes, limits.max_body_bytes);
  boost::beast::http::async_read_header(
      socket_, buffer_, *parser_, [self = shared_from_this()](const ErrorCode& error, size_t) { self->OnHead(error); });
}

void Connection::OnSlowRequest() {
  Refuse(hub_.Describe(408, absl::StrCat("the request was not complete after ",
                                         absl::FormatDuration(hub_.options.limits.request_timeout))));
}

void Connection::OnHead(const ErrorCode& error) {
  if (closed_ || refused_) return;
  if (error) return OnBadRequest(error);
  waits_.Leave();
  skipped_line_ = false;
  RequestHead head = parser_->head();
  const bool is_new = head.version > 10;
  const std::optional<Refusal> wrong = CheckFraming(head);
  request_ = RequestOf(std::move(head), peer_);
  if (wrong) {
    Response refusal = hub_.Describe(wrong->status, wrong->message);
    refusal.headers.insert(refusal.headers.end(), wrong->headers.begin(), wrong->headers.end());
    return Refuse(std::move(refusal));
  }
  if (std::optional<Response> refusal = Judge(*request_)) return Refuse(*std::move(refusal));
  parser_->eager(true);
  if (!Charge(parser_->content_length().value_or(0))) return;
  if (!is_new || request_->Header("expect").empty()) return ReadBody();
  continue_ = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(socket_, asio::buffer(continue_), [self = shared_from_this()](const ErrorCode& failed, size_t) {
    if (self->closed_ || self->refused_) return;
    if (failed) return self->Close();
    self->ReadBody();
  });
}

std::optional<Response> Connection::Judge(const Request& request) const {
  if (hub_.options.admit) {
    if (std::optional<Response> refusal = hub_.options.admit(request)) return refusal;
  }
  if (!hub_.IsFull() || hub_.IsQuick(request)) return std::nullopt;
  return TooManyWait();
}

Response Connection::TooManyWait() const {
  return hub_.Busy(429, absl::StrCat(hub_.options.limits.max_waiting_requests, " requests wait for a thread already"));
}

// A body in chunks counts as it arrives: what it will be is not known, and most are small.
void Connection::ReadBody() {
  if (parser_->is_done()) return OnBody({});
  boost::beast::http::async_read_some(socket_, buffer_, *parser_,
                                      [self = shared_from_this()](const ErrorCode& error, size_t) {
                                        if (self->closed_ || self->refused_) return;
                                        if (error) return self->OnBody(error);
                                        if (self->Charge(self->parser_->get().body().size())) self->ReadBody();
                                      });
}

bool Connection::Charge(uint64_t bytes) {
  if (bytes <= body_bytes_) return true;
  const uint64_t more = bytes - body_bytes_;
  if (hub_.bodies_bytes + more > hub_.options.limits.max_bodies_bytes) {
    Refuse(hub_.Busy(503, "too many large requests at the same time"));
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
  const ServerLimits& limits = hub_.options.limits;
  if (error == Problem::body_limit) {
    return Refuse(
        hub_.Describe(413, absl::StrCat("the body of a request has at most ", limits.max_body_bytes, " bytes")));
  }
  if (error == Problem::buffer_overflow && parser_->is_header_done()) {
    return Refuse(hub_.Describe(400, "the lines between the chunks of the body are too long"));
  }
  if (error == Problem::header_limit || error == Problem::buffer_overflow) {
    return Refuse(
        hub_.Describe(431, absl::StrCat("the head of a request has at most ", limits.max_head_bytes, " bytes")));
  }
  if (error == Problem::bad_version) return Refuse(hub_.Describe(505, "this server speaks HTTP/1.0 and HTTP/1.1"));
  const bool is_http = error.category() == boost::beast::http::make_error_code(Problem::bad_method).category();
  if (!is_http || error == Problem::end_of_stream || error == Problem::partial_message) return Close();
  Refuse(hub_.Describe(400, absl::StrCat("not a request of HTTP/1.1: ", error.message())));
}

void Connection::Handle() {
  const bool quick = hub_.IsQuick(*request_);
  if (!quick && hub_.IsFull()) return Refuse(TooManyWait());  // since the head was there
  Request request = *std::exchange(request_, std::nullopt);
  request.body = std::move(parser_->get().body());
  const bool chunks = parser_->get().version() == 11;
  const bool keep_alive = parser_->get().keep_alive() && !hub_.draining;
  parser_.reset();
  answer_ = std::make_shared<Answer>(shared_from_this(), hub_.options.limits.max_unread_bytes, hub_.all_unread,
                                     std::move(request), keep_alive, chunks);
  ++answers_;
  WatchClient();
  // The handler's copies keep a token of its own: when the last of them goes, nobody can answer any more.
  std::shared_ptr<Exchange> exchange(answer_.get(), [answer = answer_, hub = hub_.shared_from_this()](Exchange*) {
    answer->Abandon(hub->Describe(500, "the request was not answered"));
  });
  hub_.Post(this, quick, std::move(exchange));
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
    if (answer_->is_cut()) return End(false);
    return hub_.CutSlowReaders();
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
    self->slow_.Leave();
    self->WriteSome();
    self->Pump();  // what has been added meanwhile
  });
  slow_.Enter(hub_.slow, this);
  hub_.CutSlowReaders();
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
  waits_.Enter(hub_.waiting, this);
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
  if (request_) {
    ended.method = request_->method;
    ended.path = request_->path;
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
  waits_.Leave();
  slow_.Leave();
  ErrorCode ignored;
  socket_.close(ignored);
  hub_.Remove(shared_from_this());
}

}  // namespace tdock::http
