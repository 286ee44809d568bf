#include "core/net/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/time/clock.h"
#include "core/base/no_memory.h"
#include "core/base/status.h"

namespace tdock::net {
namespace {

// After this, other connections have their turn.
constexpr absl::Duration kTurn = absl::Milliseconds(1);
constexpr size_t kTurnBytes = 1 << 20;
// How long the other side may take to read a goodbye.
constexpr absl::Duration kLinger = absl::Seconds(2);

}  // namespace

Connection::Connection(std::shared_ptr<Loop> loop, std::unique_ptr<Stream> stream, size_t max_queued_bytes,
                       std::unique_ptr<Inbox> inbox)
    : loop_(std::move(loop)),
      stream_(std::move(stream)),
      max_queued_bytes_(max_queued_bytes),
      waits_(std::make_unique<Waits>()),
      inbox_(std::move(inbox)) {}

// Its data is the connection's; it carries nothing else.
struct Connection::Joined final : Recipient {
  Joined(Connection& owner, std::unique_ptr<Stream> of) : connection(owner), stream(std::move(of)) {}

  uint32_t MaxBytes(uint8_t) const override { return 0; }
  bool IsReadyFor(uint64_t tag) override { return connection.handler_->IsReadyForJoined(tag); }
  void RoomsFor(uint64_t tag, uint64_t offset, size_t most, std::vector<iovec>& rooms) override {
    connection.handler_->RoomsFor(tag, offset, most, rooms);
  }
  absl::Status OnFilled(uint64_t tag, uint64_t offset, size_t bytes) override {
    used = true;
    return connection.handler_->OnFilled(tag, offset, bytes);
  }
  absl::Status OnData(uint64_t tag, uint64_t offset, std::span<const std::byte> bytes) override {
    used = true;
    return connection.handler_->OnData(tag, offset, bytes);
  }

  Connection& connection;
  const std::unique_ptr<Stream> stream;
  Waits waits;
  Inbox inbox{*this};
  Outbox outbox;
  bool must_wait = false;  // until more has arrived over another stream
  bool used = false;
  bool retired = false;  // lost before it was used
};

Connection::~Connection() = default;

bool Connection::choked() const {
  uint64_t queued = outbox_.queued_bytes();
  for (const auto& joined : joined_) queued += joined->outbox.queued_bytes();
  return queued > max_queued_bytes_;
}

void Connection::Join(std::unique_ptr<Stream> stream, std::string welcome) {
  if (!loop_->OnLoopThread()) {
    auto shared = std::make_shared<std::unique_ptr<Stream>>(std::move(stream));
    return loop_->Post([self = shared_from_this(), shared, welcome = std::move(welcome)]() mutable {
      self->Join(std::move(*shared), std::move(welcome));
    });
  }
  if (closed_ || joined_.size() == kMaxJoined) return;
  auto joined = std::make_unique<Joined>(*this, std::move(stream));
  if (!joined->waits.Open(*loop_, joined->stream->fd()).ok()) return;
  joined->inbox.Pause(paused_);
  joined->outbox.Add(std::move(welcome));
  joined_.push_back(std::move(joined));
  FlushTo(*joined_.back());
  if (!closed_) WorkOn(*joined_.back());
}

std::unique_ptr<Stream> Connection::Release() {
  closed_ = true;
  waits_->Close();
  if (on_gone_) std::exchange(on_gone_, nullptr)();
  return std::move(stream_);
}

void Connection::WorkOn(Joined& joined) {
  if (closed_ || joined.retired) return;
  const absl::Status status = OrNoMemory("the data", [&] { return TurnOf(joined); });
  if (!status.ok() && !closed_) Lose(joined, status);
}

void Connection::Lose(Joined& joined, const absl::Status& why) {
  if (joined.used) return CloseHere(why);
  // Its client has given up making it, and goes on with the others.
  joined.retired = true;
  joined.waits.Close();
  joined.outbox = Outbox();
  shutdown(joined.stream->fd(), SHUT_RDWR);
}

absl::Status Connection::TurnOf(Joined& joined) {
  joined.must_wait = false;
  const absl::Time turn_ends = absl::Now() + kTurn;
  for (bool drained = false;;) {
    TDOCK_ASSIGN_OR_RETURN(const std::optional<Inbox::Message> message, joined.inbox.Next());
    if (message.has_value()) return absl::InvalidArgumentError("a joined stream carries data only");
    if (closed_ || paused_) return absl::OkStatus();
    if (!drained && absl::Now() >= turn_ends) {
      // A joined stream lives as long as its connection.
      loop_->Post([self = shared_from_this(), &joined] { self->WorkOn(joined); });
      return absl::OkStatus();
    }
    if (drained) {
      joined.waits.AwaitReadable([self = shared_from_this(), &joined] { self->WorkOn(joined); });
      return absl::OkStatus();
    }
    TDOCK_ASSIGN_OR_RETURN(const Inbox::Arrived arrived, joined.inbox.Read(*joined.stream));
    joined.must_wait = arrived == Inbox::Arrived::kMustWait;
    if (joined.must_wait) return absl::OkStatus();
    drained = arrived != Inbox::Arrived::kPerhapsMore;
  }
}

void Connection::FlushTo(Joined& joined) {
  if (closed_ || joined.outbox.empty()) return;
  const absl::Status status = joined.outbox.Send(*joined.stream, kTurnBytes);
  if (!status.ok()) return Lose(joined, status);
  if (joined.outbox.empty()) return Flush();
  joined.waits.AwaitWritable([self = shared_from_this(), &joined] { self->FlushTo(joined); });
}

void Connection::WorkOnWaiting() {
  for (size_t i = 0; i < joined_.size() && !closed_; ++i) {
    if (joined_[i]->must_wait) WorkOn(*joined_[i]);
  }
}

absl::Status Connection::Start(std::unique_ptr<Handler> handler, std::function<void()> on_gone) {
  TDOCK_RETURN_IF_ERROR(waits_->Open(*loop_, stream_->fd()));
  handler_ = std::move(handler);
  on_gone_ = std::move(on_gone);
  if (inbox_ == nullptr) inbox_ = std::make_unique<Inbox>(*handler_);
  inbox_->ReplaceRecipient(*handler_);
  Work();
  return absl::OkStatus();
}

void Connection::ReplaceHandler(std::unique_ptr<Handler> handler) {
  first_handler_ = std::exchange(handler_, std::move(handler));
  inbox_->ReplaceRecipient(*handler_);
}

void Connection::Work() {
  if (lingers_since_.has_value()) return Discard();
  if (closed_ || working_) return;
  working_ = true;
  const absl::Status status = OrNoMemory("the message", [&] { return Turn(); });
  working_ = false;
  if (closed_) return;
  if (!status.ok()) return CloseHere(status);
  Flush();
  for (size_t i = 0; i < joined_.size() && !closed_; ++i) FlushTo(*joined_[i]);
  WorkOnWaiting();
}

absl::Status Connection::Turn() {
  if (!shaken_hands_) {
    TDOCK_ASSIGN_OR_RETURN(shaken_hands_, stream_->Handshake());
    if (!shaken_hands_) {
      AwaitNext();
      return absl::OkStatus();
    }
  }
  const absl::Time turn_ends = absl::Now() + kTurn;
  for (bool drained = false, over = false;;) {
    TDOCK_ASSIGN_OR_RETURN(const bool handed_over, HandOver(turn_ends));
    if (closed_ || paused_) return absl::OkStatus();
    if (choked()) {
      held_up_ = true;
      return absl::OkStatus();
    }
    if (!handed_over || (over && !drained)) {
      loop_->Post([self = shared_from_this()] { self->Work(); });
      return absl::OkStatus();
    }
    if (drained) {
      // Answers go first.
      Flush();
      if (!closed_) waits_->AwaitReadable([self = shared_from_this()] { self->Work(); });
      return absl::OkStatus();
    }
    TDOCK_ASSIGN_OR_RETURN(const Inbox::Arrived arrived, inbox_->Read(*stream_));
    drained = arrived != Inbox::Arrived::kPerhapsMore;
    over = absl::Now() >= turn_ends;
  }
}

absl::StatusOr<bool> Connection::HandOver(absl::Time turn_ends) {
  while (!closed_ && !paused_ && !choked()) {
    TDOCK_ASSIGN_OR_RETURN(const std::optional<Inbox::Message> message, inbox_->Next());
    // Data may have set off the end of the connection.
    if (closed_ || !message.has_value()) return true;
    TDOCK_RETURN_IF_ERROR(handler_->OnMessage(message->header, message->body));
    // The next turn looks at the rest of the bytes.
    if (absl::Now() >= turn_ends) return false;
  }
  return true;
}

void Connection::AwaitNext() {
  stream_->awaits() == POLLOUT ? waits_->AwaitWritable([self = shared_from_this()] { self->OnWritable(); })
                               : waits_->AwaitReadable([self = shared_from_this()] { self->Work(); });
}

void Connection::OnWritable() {
  if (lingers_since_.has_value() || closed_) return;
  Flush();
  if (!shaken_hands_) Work();
}

void Connection::Flush() {
  if (closed_ || !shaken_hands_) return;
  if (const absl::Status status = outbox_.Send(*stream_, kTurnBytes); !status.ok()) return CloseHere(status);
  if (!outbox_.empty()) waits_->AwaitWritable([self = shared_from_this()] { self->OnWritable(); });
  if (held_up_ && !choked()) {
    held_up_ = false;
    loop_->Post([self = shared_from_this()] { self->Work(); });
  }
}

void Connection::Send(std::string message, std::shared_ptr<const FileDescriptor> file) {
  if (!loop_->OnLoopThread()) {
    return loop_->Post([self = shared_from_this(), message = std::move(message), file = std::move(file)]() mutable {
      self->Send(std::move(message), std::move(file));
    });
  }
  if (closed_) return;
  outbox_.Add(std::move(message), std::move(file));
  if (!working_) Flush();
}

void Connection::SendData(std::string message, uint64_t tag, std::vector<std::span<const std::byte>> pieces,
                          std::shared_ptr<const void> owner) {
  if (!loop_->OnLoopThread()) {
    return loop_->Post([self = shared_from_this(), message = std::move(message), tag, pieces = std::move(pieces),
                        owner = std::move(owner)]() mutable {
      self->SendData(std::move(message), tag, std::move(pieces), std::move(owner));
    });
  }
  if (closed_) return;
  outbox_.Add(std::move(message));
  std::vector<Outbox*> streams = {&outbox_};
  for (const auto& joined : joined_) {
    if (!joined->retired) streams.push_back(&joined->outbox);
  }
  Outbox::AddStriped(streams, tag, std::move(pieces), owner);
  for (const auto& joined : joined_) joined->used = joined->used || !joined->outbox.empty();
  if (working_) return;
  for (size_t i = 0; i < joined_.size() && !closed_; ++i) FlushTo(*joined_[i]);
  Flush();
}

void Connection::Close(const absl::Status& why) {
  if (loop_->OnLoopThread()) return CloseHere(why);
  loop_->Post([self = shared_from_this(), why] { self->CloseHere(why); });
}

void Connection::CloseHere(const absl::Status& why) {
  if (std::exchange(closed_, true)) return;
  const auto self = shared_from_this();
  const bool lost = absl::IsUnavailable(why) && outbox_.full();
  bool lingers = false;
  if (!why.ok() && shaken_hands_ && !lost) {
    outbox_.Add(GoodbyeMessage(why));
    lingers = outbox_.Send(*stream_, kTurnBytes).ok() && outbox_.empty();
  }
  outbox_ = Outbox();
  for (const auto& joined : joined_) {
    joined->waits.Close();
    joined->outbox = Outbox();
    shutdown(joined->stream->fd(), SHUT_RDWR);
  }
  handler_->OnClosed(why);
  if (!lingers) return Abort();
  // To close at once would reset the connection before the other side has read the goodbye, if it is still sending.
  stream_->EndSending();
  lingers_since_ = absl::Now();
  Discard();
}

void Connection::Discard() {
  std::array<char, 16 << 10> bytes;
  const iovec into{bytes.data(), bytes.size()};
  for (int i = 0; i < 8; ++i) {
    const absl::StatusOr<size_t> got = stream_->Read({&into, 1});
    if (!got.ok()) return Abort();
    if (*got == 0) break;
  }
  waits_->AwaitReadable([self = shared_from_this()] { self->Work(); });
}

void Connection::Tick() {
  if (lingers_since_.has_value() && absl::Now() - *lingers_since_ > kLinger) Abort();
}

void Connection::Abort() {
  if (!closed_) return CloseHere(absl::OkStatus());
  lingers_since_.reset();
  waits_->Close();
  shutdown(stream_->fd(), SHUT_RDWR);
  if (on_gone_) std::exchange(on_gone_, nullptr)();
}

void Connection::Pause() {
  paused_ = true;
  inbox_->Pause(true);
  for (const auto& joined : joined_) joined->inbox.Pause(true);
}

void Connection::Resume(const absl::Status& status) {
  if (!loop_->OnLoopThread()) {
    return loop_->Post([self = shared_from_this(), status] { self->Resume(status); });
  }
  paused_ = false;
  inbox_->Pause(false);
  for (const auto& joined : joined_) joined->inbox.Pause(false);
  if (closed_) return;
  if (!status.ok()) return CloseHere(status);
  Work();
  for (size_t i = 0; i < joined_.size() && !closed_; ++i) WorkOn(*joined_[i]);
}

}  // namespace tdock::net
