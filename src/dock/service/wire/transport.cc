#include "dock/service/wire/transport.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/no_memory.h"
#include "core/base/ranges.h"
#include "core/base/status.h"
#include "dock/service/wire/dock_message.h"
#include "dock/store/warm_memory.h"
#include "tdock/frame.h"

namespace tdock::service {
namespace {

// Smaller data goes over the socket: that is faster than using shared memory.
constexpr size_t kInlineBytes = 64 << 10;
// At most this many idle connections are kept.
constexpr size_t kMaxIdle = 64;
// How long a call that is answered may wait for more sockets.
constexpr absl::Duration kWidenWithin = absl::Seconds(1);

std::vector<std::span<const std::byte>> PiecesOf(const EncodedFrame& frame) {
  std::vector<std::span<const std::byte>> pieces;
  for (const absl::string_view piece : frame.Pieces()) {
    if (!piece.empty()) pieces.push_back(net::AsBytes(piece));
  }
  return pieces;
}

absl::Status Wrong(uint8_t type) {
  return absl::UnavailableError(
      absl::StrCat("the server sent a message of type ", static_cast<int>(type), " that is wrong"));
}

}  // namespace

// One call over one connection.
class Transport::Exchange final : public net::Recipient {
 public:
  Exchange(net::Channel& channel, std::shared_ptr<Shared> shared, Memory& memory, uint64_t call, absl::Time deadline)
      : channel_(channel), shared_(std::move(shared)), memory_(memory), call_(call), deadline_(deadline) {}

  absl::Status Send(const message::Request& request, const Batch& batch);
  absl::Status AwaitAnswer(ClientAnswer& answer);
  // Slots that the server has not yet reported as copied.
  std::vector<uint32_t> TakeLent() { return std::exchange(lent_, {}); }

  uint32_t MaxBytes(uint8_t type) const override { return MaxBytesFromServer(type, channel_.stream().passes_files()); }
  // Other sockets bring what follows a reply.
  bool IsReadyFor(uint64_t tag) override { return tag != call_ || answered_; }
  void RoomsFor(uint64_t tag, uint64_t offset, size_t most, std::vector<iovec>& rooms) override {
    if (tag != call_ || offset >= bytes_.size()) return;
    rooms.push_back({bytes_.mutable_data() + offset, std::min<size_t>(most, bytes_.size() - offset)});
  }
  absl::Status OnFilled(uint64_t, uint64_t offset, size_t bytes) override {
    if (streamed_.Add(offset, offset + bytes)) return absl::OkStatus();
    return absl::UnavailableError("the server sent the same bytes twice");
  }
  absl::Status OnData(uint64_t tag, uint64_t offset, std::span<const std::byte> bytes) override {
    // Another call's, which was abandoned.
    if (tag != call_ || bytes.empty()) return absl::OkStatus();
    if (offset > bytes_.size() || bytes.size() > bytes_.size() - offset) {
      return absl::UnavailableError("the server sent too many bytes");
    }
    std::memcpy(bytes_.mutable_data() + offset, bytes.data(), bytes.size());
    return OnFilled(tag, offset, bytes.size());
  }
  // True if the payload was worth several sockets.
  bool was_large() const { return std::max<uint64_t>(bytes_.size(), sent_bytes_) >= net::Outbox::kStripedBytes; }

 private:
  absl::Status SendThroughMemory(const std::vector<std::span<const std::byte>>& frame);
  absl::StatusOr<uint32_t> BorrowSlot();
  absl::Status Handle(const net::Inbox::Message& message);
  absl::Status OnReply(absl::string_view body);
  absl::StatusOr<CellBytes> LookAt(const message::Rows& rows) const;

  net::Channel& channel_;
  const std::shared_ptr<Shared> shared_;
  Memory& memory_;
  const uint64_t call_;
  const absl::Time deadline_;
  std::vector<uint32_t> lent_;
  bool answered_ = false;
  message::Reply reply_;
  size_t sent_bytes_ = 0;
  // Bytes that follow the reply, and the ranges that have arrived.
  Buffer bytes_;
  Ranges streamed_;
};

Transport::Transport(net::ServerAddress server)
    : server_(std::move(server)), memory_(std::make_shared<dock::WarmMemory>()) {}

absl::StatusOr<Transport::Channel> Transport::Open(const message::Hello& hello, absl::Time deadline,
                                                   message::Welcome& welcome) {
  TDOCK_ASSIGN_OR_RETURN(Channel channel, net::Channel::Connect(server_, Serialize(hello), deadline));
  TDOCK_ASSIGN_OR_RETURN(welcome, Parse<message::Welcome>(channel->welcome()));
  MutexLock lock(mu_);
  if (shared_ != nullptr && shared_->session == welcome.session && shared_->instance == welcome.instance) {
    return channel;
  }
  auto shared = std::make_shared<Shared>();
  shared->instance = welcome.instance;
  shared->session = welcome.session;
  if (channel->stream().passes_files()) {
    if (channel->welcome_file() == nullptr) {
      return absl::UnavailableError("the server sent a welcome without the descriptor that belongs to it");
    }
    TDOCK_ASSIGN_OR_RETURN(shared->area, dock::UploadArea::Map(channel->welcome_file()->fd(), welcome.upload_slots,
                                                               welcome.upload_slot_bytes));
    shared->slots.emplace(welcome.upload_slots);
  }
  shared_ = std::move(shared);
  idle_.clear();
  last_.reset();
  hello_ = hello;
  hello_.session = welcome.session;
  return channel;
}

absl::StatusOr<message::Welcome> Transport::Connect(const message::Hello& hello, absl::Time deadline) {
  message::Welcome welcome;
  TDOCK_ASSIGN_OR_RETURN(Channel channel, Open(hello, deadline, welcome));
  MutexLock lock(mu_);
  idle_.push_back(std::move(channel));
  last_.reset();
  return welcome;
}

Transport::Channel Transport::TakeIdle() {
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

absl::StatusOr<Transport::Channel> Transport::Acquire(absl::Time deadline) {
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

void Transport::Keep(Channel channel, const std::shared_ptr<Shared>& shared) {
  Channel last;  // closed without the lock, and after there is another
  MutexLock lock(mu_);
  if (shared != shared_ || idle_.size() >= kMaxIdle) return;
  idle_.push_back(std::move(channel));
  last = std::move(last_);
}

void Transport::Abandon(Channel channel, const std::shared_ptr<Shared>& shared, uint64_t call,
                        std::vector<uint32_t> lent) {
  if (!lent.empty()) return shared->slots->Abandon(std::move(channel), call, std::move(lent));
  MutexLock lock(mu_);
  if (shared == shared_ && idle_.empty()) last_.swap(channel);
}

ClientAnswer Transport::Call(const std::string& session, const message::Request& request, const Batch& batch,
                             absl::Time deadline) {
  ClientAnswer answer;
  absl::StatusOr<Channel> channel = Acquire(deadline);
  if (!channel.ok()) {
    answer.status = channel.status();
    // A server that is stopped does not answer a hello either.
    const bool late = absl::IsUnavailable(answer.status) && absl::Now() >= deadline;
    if (late) answer.status = absl::DeadlineExceededError(answer.status.message());
    return answer;
  }
  std::shared_ptr<Shared> shared;
  {
    MutexLock lock(mu_);
    shared = shared_;
  }
  if (shared->session != session) {
    // It was made for another session, which has ended.
    answer.status = absl::UnavailableError("the session is gone");
    return answer;
  }
  Exchange exchange(**channel, shared, *memory_, request.call, deadline);
  answer.sent = true;
  answer.status = exchange.Send(request, batch);
  if (answer.status.ok()) answer.status = exchange.AwaitAnswer(answer);
  if (answer.status.ok()) {
    // The server reads none of them once it has answered.
    if (shared->slots.has_value()) shared->slots->Return(exchange.TakeLent());
    // The next large payload goes over several sockets; without them it goes over one.
    if (exchange.was_large() && !(*channel)->tried_to_widen() && !shared->slots.has_value()) {
      (*channel)->Widen(server_, std::min(deadline, absl::Now() + kWidenWithin)).IgnoreError();
    }
    Keep(*std::move(channel), shared);
  } else {
    Abandon(*std::move(channel), shared, request.call, exchange.TakeLent());
  }
  return answer;
}

bool Transport::Tell(const message::Request& request, absl::Duration connect_within) {
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
  channel->out().Add(ControlMessage(kCall, 0, request));
  if (!channel->Flush(std::max(deadline, absl::Now() + absl::Milliseconds(1))).ok()) {
    Abandon(std::move(channel), shared, request.call, {});
    return false;
  }
  Keep(std::move(channel), shared);
  return true;
}

absl::Status Transport::Exchange::Send(const message::Request& request, const Batch& batch) {
  std::string control = ControlMessage(kCall, call_, request);
  if (control.size() - sizeof(net::MessageHeader) > kMaxControlBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a request of ", control.size(),
                                                   " bytes, not counting cells; the limit is ", kMaxControlBytes,
                                                   ": ask for less in one call"));
  }
  channel_.out().Add(std::move(control));
  if (batch.empty()) return channel_.Flush(deadline_);
  TDOCK_ASSIGN_OR_RETURN(const EncodedFrame frame, EncodeFrame(MetaBatch(batch), {}, FrameChecksums::kNone));
  std::vector<std::span<const std::byte>> pieces = PiecesOf(frame);
  size_t total = 0;
  for (const auto& piece : pieces) total += piece.size();
  if (total <= kInlineBytes || !shared_->slots.has_value()) {
    // The frame outlives what is sent.
    sent_bytes_ = shared_->slots.has_value() ? 0 : total;
    channel_.AddData(call_, std::move(pieces), nullptr);
    return channel_.Flush(deadline_);
  }
  TDOCK_RETURN_IF_ERROR(channel_.Flush(deadline_));
  return SendThroughMemory(pieces);
}

absl::Status Transport::Exchange::SendThroughMemory(const std::vector<std::span<const std::byte>>& frame) {
  auto piece = frame.begin();
  size_t at = 0;
  while (piece != frame.end() && !answered_) {
    TDOCK_ASSIGN_OR_RETURN(const uint32_t slot, BorrowSlot());
    TDOCK_ASSIGN_OR_RETURN(const std::span<std::byte> memory, shared_->area->Slot(slot, shared_->area->slot_bytes()));
    size_t filled = 0;
    while (piece != frame.end() && filled < memory.size()) {
      const size_t step = std::min(piece->size() - at, memory.size() - filled);
      std::memcpy(memory.data() + filled, piece->data() + at, step);
      filled += step;
      at += step;
      if (at == piece->size()) ++piece, at = 0;
    }
    channel_.out().Add(net::NumbersMessage(kSlot, call_, slot, static_cast<uint32_t>(filled)));
    TDOCK_RETURN_IF_ERROR(channel_.Flush(deadline_));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> Transport::Exchange::BorrowSlot() {
  // Reads the server's messages first, so that it is never blocked by unread ones.
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(const std::optional<net::Inbox::Message> message, channel_.TryReceive(*this));
    if (!message.has_value()) break;
    TDOCK_RETURN_IF_ERROR(Handle(*message));
  }
  for (;;) {
    const std::optional<uint32_t> slot = shared_->slots->Take(lent_.empty() ? deadline_ : absl::InfinitePast());
    if (slot.has_value()) {
      lent_.push_back(*slot);
      return *slot;
    }
    if (lent_.empty()) return absl::DeadlineExceededError("no slot of the upload area became free");
    TDOCK_ASSIGN_OR_RETURN(const net::Inbox::Message message, channel_.Receive(*this, deadline_));
    TDOCK_RETURN_IF_ERROR(Handle(message));
  }
}

absl::Status Transport::Exchange::AwaitAnswer(ClientAnswer& answer) {
  for (absl::Time look_until = absl::Now() + net::Channel::kLookForAnswer;
       !answered_ || streamed_.total() < bytes_.size();) {
    const uint64_t before = streamed_.total();
    TDOCK_ASSIGN_OR_RETURN(const std::optional<net::Inbox::Message> message, channel_.TryReceive(*this));
    if (message.has_value()) {
      TDOCK_RETURN_IF_ERROR(Handle(*message));
      continue;
    }
    if (answered_ && streamed_.total() == bytes_.size()) break;
    if (streamed_.total() > before) look_until = absl::Now() + net::Channel::kLookForAnswer;
    TDOCK_RETURN_IF_ERROR(channel_.AwaitInput(look_until, deadline_));
  }
  answer.reply = std::move(reply_);
  if (const message::Rows* rows = RowsIn(answer.reply)) {
    TDOCK_ASSIGN_OR_RETURN(answer.cells, LookAt(*rows));
  }
  return absl::OkStatus();
}

absl::Status Transport::Exchange::Handle(const net::Inbox::Message& message) {
  switch (message.header.type) {
    case kReply:
      // The response to an earlier call that was abandoned.
      return message.header.tag == call_ ? OnReply(message.body) : absl::OkStatus();
    case kConsumed: {
      if (message.body.size() != 4) break;
      const auto slot = net::NumberAt<uint32_t>(message.body, 0);
      // The last report of a call may arrive after its response, when the slot is in use again.
      if (message.header.tag == call_ && std::erase(lent_, slot) > 0) shared_->slots->Return(std::span(&slot, 1));
      return absl::OkStatus();
    }
    case kSegment: {
      const std::shared_ptr<const FileDescriptor> file = channel_.stream().TakeFile();
      if (message.body.size() != 16 || file == nullptr) break;
      return shared_->segments.Add(net::NumberAt<uint64_t>(message.body, 0), file,
                                   net::NumberAt<uint64_t>(message.body, 8));
    }
    case kGone:
      if (message.body.size() != 8) break;
      shared_->segments.Forget(net::NumberAt<uint64_t>(message.body, 0));
      return absl::OkStatus();
    default:
      break;
  }
  return Wrong(message.header.type);
}

absl::Status Transport::Exchange::OnReply(absl::string_view body) {
  absl::StatusOr<message::Reply> reply = Parse<message::Reply>(body);
  if (!reply.ok() || answered_) return absl::UnavailableError("the response cannot be parsed");
  reply_ = *std::move(reply);
  answered_ = true;
  const message::Rows* const rows = RowsIn(reply_);
  if (rows == nullptr || rows->streamed_bytes == 0) return absl::OkStatus();
  return OrNoMemory("the response", [&] {
    bytes_ = memory_.Allocate(rows->streamed_bytes);
    return absl::OkStatus();
  });
}

absl::StatusOr<CellBytes> Transport::Exchange::LookAt(const message::Rows& rows) const {
  std::vector<std::shared_ptr<const void>> mappings;
  uint64_t last = 0;
  const auto look = [&](uint64_t segment, uint64_t offset, uint64_t bytes) -> absl::StatusOr<const std::byte*> {
    TDOCK_ASSIGN_OR_RETURN(const Buffer view, shared_->segments.Look(segment, offset, bytes));
    if (mappings.empty() || segment != last) mappings.push_back(view.owner());
    last = segment;
    return view.data();
  };
  TDOCK_ASSIGN_OR_RETURN(CellBytes cells, CellsIn(rows, look, bytes_));
  cells.pins.insert(cells.pins.end(), mappings.begin(), mappings.end());
  if (bytes_.size() > 0) {
    cells.pins.push_back(bytes_.owner());
    return cells;
  }
  cells.look_privately = [shared = shared_](std::span<const std::byte> bytes) {
    return shared->segments.LookPrivately(bytes);
  };
  return cells;
}

}  // namespace tdock::service
