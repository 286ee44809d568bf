#include "dock/service/wire/socket_transport.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "tdock/frame.h"

namespace tdock::service {
namespace {

// Smaller data goes over the socket: that is faster than using shared memory.
constexpr size_t kInlineBytes = 64 << 10;
// At most this many idle connections are kept.
constexpr size_t kMaxIdle = 64;

}  // namespace

absl::StatusOr<SocketTransport::Channel> SocketTransport::Open(const message::Hello& hello, absl::Time deadline,
                                                               message::Welcome& welcome) {
  TDOCK_ASSIGN_OR_RETURN(Channel channel, SocketChannel::Connect(path_, deadline));
  TDOCK_RETURN_IF_ERROR(channel->Send({ControlMessage(SocketMessage::kHello, 0, hello)}, deadline));
  TDOCK_ASSIGN_OR_RETURN(const SocketChannel::Message message, channel->Receive(deadline));
  absl::StatusOr<message::Welcome> parsed = Parse<message::Welcome>(message.body);
  if (message.header.type != SocketMessage::kWelcome || !parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "what listens on '", EscapeUnprintable(path_), "' answered a hello with a message of type ",
        static_cast<int>(message.header.type), ", not with a welcome that can be parsed: it is no dock server"));
  }
  welcome = *std::move(parsed);
  MutexLock lock(mu_);
  if (shared_ != nullptr && shared_->session == welcome.session && shared_->instance == welcome.instance) {
    return channel;
  }
  TDOCK_ASSIGN_OR_RETURN(dock::UploadArea area,
                         dock::UploadArea::Map(message.file->fd(), welcome.upload_slots, welcome.upload_slot_bytes));
  auto shared = std::make_shared<Shared>();
  shared->instance = welcome.instance;
  shared->session = welcome.session;
  shared->area = std::move(area);
  shared->slots.emplace(welcome.upload_slots);
  shared_ = std::move(shared);
  idle_.clear();
  last_.reset();
  hello_ = hello;
  hello_.session = welcome.session;
  return channel;
}

absl::StatusOr<message::Welcome> SocketTransport::Connect(const message::Hello& hello, absl::Time deadline) {
  message::Welcome welcome;
  TDOCK_ASSIGN_OR_RETURN(Channel channel, Open(hello, deadline, welcome));
  MutexLock lock(mu_);
  idle_.push_back(std::move(channel));
  last_.reset();
  return welcome;
}

SocketTransport::Channel SocketTransport::TakeIdle() {
  for (;;) {
    Channel channel;
    {
      MutexLock lock(mu_);
      if (idle_.empty()) return nullptr;
      channel = std::move(idle_.back());
      idle_.pop_back();
    }
    if (!channel->IsBroken()) return channel;
  }
}

absl::StatusOr<SocketTransport::Channel> SocketTransport::Acquire(absl::Time deadline) {
  if (Channel channel = TakeIdle(); channel != nullptr) return channel;
  message::Hello hello;
  {
    MutexLock lock(mu_);
    hello = hello_;
  }
  message::Welcome welcome;
  TDOCK_ASSIGN_OR_RETURN(Channel channel, Open(hello, deadline, welcome));
  if (welcome.session == hello.session) return channel;
  return absl::UnavailableError("the session is gone");
}

void SocketTransport::Keep(Channel channel, const std::shared_ptr<Shared>& shared) {
  Channel last;  // closed without the lock, and after there is another
  MutexLock lock(mu_);
  if (shared != shared_ || idle_.size() >= kMaxIdle) return;
  idle_.push_back(std::move(channel));
  last = std::move(last_);
}

void SocketTransport::Abandon(Channel channel, const std::shared_ptr<Shared>& shared, uint64_t call,
                              std::vector<uint32_t> lent) {
  if (!lent.empty()) return shared->slots->Abandon(std::move(channel), call, std::move(lent));
  MutexLock lock(mu_);
  if (shared == shared_ && idle_.empty()) last_.swap(channel);
}

ClientAnswer SocketTransport::Call(const message::Request& request, const Batch& batch, absl::Time deadline) {
  ClientAnswer answer;
  absl::StatusOr<Channel> channel = Acquire(deadline);
  if (!channel.ok()) {
    answer.status = channel.status();
    return answer;
  }
  std::shared_ptr<Shared> shared;
  {
    MutexLock lock(mu_);
    shared = shared_;
  }
  if (shared->session != request.session) {
    // It was made for another session, which has ended.
    answer.status = absl::UnavailableError("the session is gone");
    return answer;
  }
  Exchange exchange(**channel, shared, request.call, deadline);
  answer.sent = true;
  answer.status = exchange.Send(request, batch);
  if (answer.status.ok()) answer.status = exchange.AwaitAnswer(answer);
  if (answer.status.ok()) {
    // The server reads none of them once it has answered.
    shared->slots->Return(exchange.TakeLent());
    Keep(*std::move(channel), shared);
  } else {
    Abandon(*std::move(channel), shared, request.call, exchange.TakeLent());
  }
  return answer;
}

bool SocketTransport::Tell(const message::Request& request, absl::Duration connect_within) {
  Channel channel = TakeIdle();
  const absl::Time deadline = absl::Now() + connect_within;
  if (channel == nullptr && connect_within > absl::ZeroDuration()) {
    absl::StatusOr<Channel> made = Acquire(deadline);
    if (made.ok()) channel = *std::move(made);
  }
  if (channel == nullptr) return false;
  std::shared_ptr<Shared> shared;
  {
    MutexLock lock(mu_);
    shared = shared_;
  }
  // Up to this size, data fits into the socket's buffer, unless the server does not read at all.
  const std::string message = ControlMessage(SocketMessage::kCall, 0, request);
  if (!channel->Send({message}, std::max(deadline, absl::Now() + absl::Milliseconds(1))).ok()) {
    Abandon(std::move(channel), shared, request.call, {});
    return false;
  }
  Keep(std::move(channel), shared);
  return true;
}

absl::Status SocketTransport::Exchange::Send(const message::Request& request, const Batch& batch) {
  std::string control = ControlMessage(SocketMessage::kCall, call_, request);
  if (control.size() - sizeof(SocketHeader) > kMaxSocketControlBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a request of ", control.size() - sizeof(SocketHeader),
                                                   " bytes, not counting cells; the limit is ", kMaxSocketControlBytes,
                                                   ": ask for less in one call"));
  }
  if (batch.empty()) return channel_.Send({control}, deadline_);
  TDOCK_ASSIGN_OR_RETURN(const EncodedFrame frame, EncodeFrame(MetaBatch(batch), {}, FrameChecksums::kNone));
  std::vector<absl::string_view> pieces = frame.Pieces();
  size_t total = 0;
  for (absl::string_view piece : pieces) total += piece.size();
  if (total <= kInlineBytes) {
    AppendHeader(SocketMessage::kData, call_, total, &control);
    pieces.insert(pieces.begin(), control);
    return channel_.Send(std::move(pieces), deadline_);
  }
  TDOCK_RETURN_IF_ERROR(channel_.Send({control}, deadline_));
  return SendThroughMemory(pieces);
}

absl::Status SocketTransport::Exchange::SendThroughMemory(const std::vector<absl::string_view>& frame) {
  auto piece = frame.begin();
  size_t at = 0;
  while (piece != frame.end() && !answered_) {
    TDOCK_ASSIGN_OR_RETURN(const uint32_t slot, BorrowSlot());
    TDOCK_ASSIGN_OR_RETURN(const std::span<std::byte> memory, shared_->area->Slot(slot, shared_->area->slot_bytes()));
    size_t filled = 0;
    while (piece != frame.end() && filled < memory.size()) {
      const size_t step = std::min(piece->size() - at, memory.size() - filled);
      if (step > 0)
        std::memcpy(memory.data() + filled, piece->data() + at, step);  // an empty piece may have no address
      filled += step;
      at += step;
      if (at == piece->size()) ++piece, at = 0;
    }
    const std::string message = NumbersMessage(SocketMessage::kSlot, call_, slot, static_cast<uint32_t>(filled));
    TDOCK_RETURN_IF_ERROR(channel_.Send({message}, deadline_));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> SocketTransport::Exchange::BorrowSlot() {
  // Reads the server's messages first, so that it is never blocked by unread ones.
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(std::optional<SocketChannel::Message> message, channel_.TryReceive());
    if (!message.has_value()) break;
    TDOCK_RETURN_IF_ERROR(Handle(*std::move(message)));
  }
  for (;;) {
    const std::optional<uint32_t> slot = shared_->slots->Take(lent_.empty() ? deadline_ : absl::InfinitePast());
    if (slot.has_value()) {
      lent_.push_back(*slot);
      return *slot;
    }
    if (lent_.empty()) return absl::DeadlineExceededError("no slot of the upload area became free");
    TDOCK_ASSIGN_OR_RETURN(SocketChannel::Message message, channel_.Receive(deadline_));
    TDOCK_RETURN_IF_ERROR(Handle(std::move(message)));
  }
}

absl::Status SocketTransport::Exchange::AwaitAnswer(ClientAnswer& answer) {
  while (!answered_) {
    TDOCK_ASSIGN_OR_RETURN(SocketChannel::Message message, channel_.Receive(deadline_));
    TDOCK_RETURN_IF_ERROR(Handle(std::move(message)));
  }
  answer.reply = std::move(reply_);
  if (const message::Rows* rows = RowsIn(answer.reply)) {
    TDOCK_ASSIGN_OR_RETURN(answer.cells, LookAt(*rows));
  }
  return absl::OkStatus();
}

absl::Status SocketTransport::Exchange::Handle(SocketChannel::Message message) {
  switch (message.header.type) {
    case SocketMessage::kReply:
      // The response to an earlier call that was abandoned.
      if (message.header.tag != call_) return absl::OkStatus();
      if (absl::StatusOr<message::Reply> reply = Parse<message::Reply>(message.body); reply.ok()) {
        reply_ = *std::move(reply);
        answered_ = true;
        return absl::OkStatus();
      }
      return absl::UnavailableError("the response cannot be parsed");
    case SocketMessage::kConsumed: {
      if (message.body.size() != 4) break;
      const auto slot = NumberAt<uint32_t>(message.body, 0);
      // The last report of a call may arrive after its response, when the slot is in use again.
      if (message.header.tag == call_ && std::erase(lent_, slot) > 0) shared_->slots->Return(std::span(&slot, 1));
      return absl::OkStatus();
    }
    case SocketMessage::kSegment:
      if (message.body.size() != 16) break;
      return shared_->segments.Add(NumberAt<uint64_t>(message.body, 0), message.file,
                                   NumberAt<uint64_t>(message.body, 8));
    case SocketMessage::kGone:
      if (message.body.size() != 8) break;
      shared_->segments.Forget(NumberAt<uint64_t>(message.body, 0));
      return absl::OkStatus();
    default:
      break;
  }
  return absl::UnavailableError(
      absl::StrCat("the server sent a message of type ", static_cast<int>(message.header.type), " that is wrong"));
}

absl::StatusOr<CellBytes> SocketTransport::Exchange::LookAt(const message::Rows& rows) const {
  std::vector<std::shared_ptr<const void>> mappings;
  uint64_t last = 0;
  const auto look = [&](uint64_t segment, uint64_t offset, uint64_t bytes) -> absl::StatusOr<const std::byte*> {
    TDOCK_ASSIGN_OR_RETURN(const Buffer view, shared_->segments.Look(segment, offset, bytes));
    if (mappings.empty() || segment != last) mappings.push_back(view.owner());
    last = segment;
    return view.data();
  };
  TDOCK_ASSIGN_OR_RETURN(CellBytes cells, CellsIn(rows, look));
  cells.pins.insert(cells.pins.end(), mappings.begin(), mappings.end());
  cells.look_privately = [shared = shared_](std::span<const std::byte> bytes) {
    return shared->segments.LookPrivately(bytes);
  };
  return cells;
}

}  // namespace tdock::service
