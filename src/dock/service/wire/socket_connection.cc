#include "dock/service/wire/socket_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/no_memory.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "dock/service/wire/field_codec.h"
#include "dock/service/wire/messages.h"
#include "dock/service/wire/rows_codec.h"

namespace tdock::service {
namespace {

// More memory than this is not kept for later messages.
constexpr size_t kKeepBytes = 1 << 20;
// After this, other connections have their turn.
constexpr absl::Duration kTurn = absl::Milliseconds(1);
constexpr size_t kTurnBytes = 1 << 20;
// Long work is left to workers: a control message of this size, the header of a frame, or a frame.
constexpr uint32_t kLongMessageBytes = 16 << 10;
constexpr uint64_t kLongHeaderBytes = 16 << 10;
constexpr uint64_t kLongFrameBytes = 1 << 20;

static_assert(kMaxSocketControlBytes == Service::kMaxControlBytes);

std::span<const std::byte> AsBytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

SocketConnection::SocketConnection(int fd, std::shared_ptr<EventLoop> loop, const Shared& shared,
                                   std::function<void(int)> on_closed)
    : fd_(fd), loop_(std::move(loop)), shared_(shared), on_closed_(std::move(on_closed)), opened_(absl::Now()) {}

SocketConnection::~SocketConnection() { close(fd_); }

absl::Status SocketConnection::Start() {
  watched_events_ = EPOLLIN;
  return loop_->Add(fd_, watched_events_, [self = shared_from_this()](uint32_t events) { self->OnEvents(events); });
}

void SocketConnection::Tick() {
  if (connection_ != nullptr || absl::Now() < opened_ + shared_.limits.hello_within) return;
  Close(absl::DeadlineExceededError("the client did not say hello"));
}

void SocketConnection::Close(const absl::Status& why) {
  if (std::exchange(closed_, true)) return;
  if (!why.ok()) {
    message::Reply goodbye;
    Encode(why, &goodbye);
    out_.push_back({.bytes = ControlMessage(SocketMessage::kGoodbye, 0, goodbye)});
    Flush();
  }
  // The watch holds this object.
  const auto self = shared_from_this();
  loop_->Remove(fd_);
  shutdown(fd_, SHUT_RDWR);
  if (!handed_over_) uploads_.clear();
  if (!handed_over_) connection_.reset();
  out_.clear();
  on_closed_(fd_);
}

void SocketConnection::OnEvents(uint32_t events) {
  if ((events & EPOLLOUT) != 0) {
    Flush();
    // Reading was paused before this.
    if (!choked()) HandleMessages();
  }
  if (!closed_ && handed_over_ && (events & (EPOLLHUP | EPOLLERR)) != 0) {
    loop_->Remove(fd_);
    unwatched_ = true;
    return;
  }
  if (!closed_ && !handed_over_ && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) Read();
  if (!closed_) Watch();
}

void SocketConnection::Read() {
  const std::span<char> scratch = loop_->scratch();
  const ssize_t got = recv(fd_, scratch.data(), scratch.size(), 0);
  if (got == 0) return Close(absl::OkStatus());
  if (got < 0) {
    if (errno != EAGAIN && errno != EINTR) Close(absl::OkStatus());
    return;
  }
  const absl::Status status = OrNoMemory("the message", [&] {
    in_.append(scratch.data(), static_cast<size_t>(got));
    return absl::OkStatus();
  });
  if (!status.ok()) return Close(status);
  HandleMessages();
}

void SocketConnection::HandleMessages() {
  size_t begin = 0, missing = 0;
  const absl::Time turn_ends = absl::Now() + kTurn;
  bool over = false;
  while (!closed_ && !handed_over_ && !choked() && in_.size() - begin >= sizeof(SocketHeader)) {
    SocketHeader header;
    std::memcpy(&header, in_.data() + begin, sizeof(header));
    if (header.length > MaxSocketMessageBytes(header.type)) {
      return Close(absl::InvalidArgumentError(absl::StrCat("message of type ", static_cast<int>(header.type), " with ",
                                                           header.length, " bytes; the limit is ",
                                                           MaxSocketMessageBytes(header.type))));
    }
    if (in_.size() - begin - sizeof(header) < header.length) {
      missing = sizeof(header) + header.length;
      break;
    }
    over = absl::Now() >= turn_ends;
    if (over) break;
    const absl::string_view body(in_.data() + begin + sizeof(header), header.length);
    if (IsLong(header, body)) return HandOver(begin, header);
    if (absl::Status status = Handle(header, body); !status.ok()) return Close(status);
    begin += sizeof(header) + header.length;
  }
  if (closed_ || handed_over_) return;
  in_.erase(0, begin);
  if (in_.empty() && in_.capacity() > kKeepBytes) in_.shrink_to_fit();
  if (missing > kKeepBytes) {
    // Unwritten memory costs nothing, and received bytes are not copied repeatedly.
    const absl::Status status = OrNoMemory("the message", [&] {
      in_.reserve(missing + loop_->scratch().size());
      return absl::OkStatus();
    });
    if (!status.ok()) return Close(status);
  }
  if (over && !std::exchange(more_posted_, true)) {
    loop_->Post([self = shared_from_this()] {
      self->more_posted_ = false;
      if (self->closed_) return;
      self->HandleMessages();
      if (!self->closed_) self->Watch();
    });
  }
}

bool SocketConnection::IsLong(const SocketHeader& header, absl::string_view body) {
  if (shared_.service.work() == nullptr || connection_ == nullptr) return false;
  if (header.type == SocketMessage::kCall) return header.length > kLongMessageBytes;
  const auto found = uploads_.find(header.tag);
  if (found == uploads_.end()) return false;
  std::span<const std::byte> bytes = AsBytes(body);
  if (header.type == SocketMessage::kSlot && body.size() == 8) {
    const auto lying = area_->Slot(NumberAt<uint32_t>(body, 0), NumberAt<uint32_t>(body, 4));
    if (!lying.ok()) return false;
    bytes = *lying;
  }
  return found->second->reader.WouldComplete(bytes, kLongHeaderBytes, kLongFrameBytes);
}

void SocketConnection::HandOver(size_t begin, const SocketHeader& header) {
  handed_over_ = true;
  Watch();
  shared_.service.work()->Post(connection_->session().get(), [self = shared_from_this(), begin, header] {
    std::string& in = self->in_;
    const absl::Status status =
        self->Handle(header, absl::string_view(in.data() + begin + sizeof(header), header.length));
    in.erase(0, begin + sizeof(header) + header.length);
    if (in.capacity() > kKeepBytes) in.shrink_to_fit();
    self->loop_->Post([self, status] { self->TakeBack(status); });
  });
}

void SocketConnection::TakeBack(const absl::Status& status) {
  handed_over_ = false;
  if (closed_) {
    uploads_.clear();
    connection_.reset();
    return;
  }
  if (!status.ok()) return Close(status);
  if (std::exchange(unwatched_, false)) {
    watched_events_ = EPOLLIN;
    const auto on_events = [self = shared_from_this()](uint32_t events) { self->OnEvents(events); };
    if (absl::Status watched = loop_->Add(fd_, watched_events_, on_events); !watched.ok()) return Close(watched);
  }
  HandleMessages();
  if (!closed_) Watch();
}

absl::Status SocketConnection::Handle(const SocketHeader& header, absl::string_view body) {
  if (connection_ == nullptr && header.type != SocketMessage::kHello) {
    return absl::FailedPreconditionError("the first message must be a hello");
  }
  switch (header.type) {
    case SocketMessage::kHello:
      return OnHello(body);
    case SocketMessage::kCall:
      return OnCall(header.tag, body);
    case SocketMessage::kData:
      return OnBytes(header.tag, AsBytes(body));
    case SocketMessage::kSlot:
      return OnSlot(header.tag, body);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("a client does not send messages of type ", static_cast<int>(header.type)));
  }
}

absl::Status SocketConnection::OnHello(absl::string_view body) {
  if (connection_ != nullptr) return absl::FailedPreconditionError("a second hello");
  const absl::StatusOr<message::Hello> hello = Parse<message::Hello>(body);
  if (!hello.ok()) return absl::InvalidArgumentError("a hello that cannot be parsed");
  TDOCK_ASSIGN_OR_RETURN(Service::Welcomed welcomed, shared_.service.Connect(*hello));
  const SocketLimits& limits = shared_.limits;
  TDOCK_ASSIGN_OR_RETURN(area_, welcomed.connection->session()->Upload(limits.upload_slots, limits.upload_slot_bytes));
  connection_ = std::move(welcomed.connection);
  client_ = absl::StrCat("for client '", EscapeForMessage(hello->client.substr(0, 64)), "'");
  welcomed.welcome.upload_slots = limits.upload_slots;
  welcomed.welcome.upload_slot_bytes = limits.upload_slot_bytes;
  Send(ControlMessage(SocketMessage::kWelcome, 0, welcomed.welcome), area_->file());
  return absl::OkStatus();
}

absl::Status SocketConnection::OnCall(uint64_t tag, absl::string_view body) {
  absl::StatusOr<message::Request> request = OrNoMemory("the request", [&] { return Parse<message::Request>(body); });
  if (absl::IsInvalidArgument(request.status())) {
    return absl::InvalidArgumentError(absl::StrCat("request ", tag, " cannot be read"));
  }
  if (!request.ok()) {
    ReplyError(tag, request.status());
    return absl::OkStatus();
  }
  if (!HasFrame(*request)) {
    Start(*std::move(request), Batch());
    return absl::OkStatus();
  }
  if (uploads_.size() >= shared_.limits.max_uploads) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", shared_.limits.max_uploads, " puts at once over one connection"));
  }
  if (uploads_.contains(tag)) return absl::InvalidArgumentError(absl::StrCat("two puts with the number ", tag));
  FrameLimits limits;
  limits.allow_unchecked = true;
  limits.max_frame_bytes = shared_.service.max_frame_bytes();
  // If there is no such partition, the dock says so when it gets the put.
  const absl::StatusOr<std::shared_ptr<Memory>> memory = shared_.service.MemoryFor(FirstText(request->body));
  const auto allocate = [memory = memory.ok() ? *memory : nullptr](size_t bytes) {
    return memory == nullptr ? Buffer::Allocate(bytes) : memory->Allocate(bytes);
  };
  uploads_.emplace(tag, std::unique_ptr<Upload>(new Upload{*std::move(request), FrameReader(limits, allocate)}));
  return absl::OkStatus();
}

absl::Status SocketConnection::OnSlot(uint64_t tag, absl::string_view body) {
  if (body.size() != 8) return absl::InvalidArgumentError("a slot message that does not have 8 bytes");
  const auto slot = NumberAt<uint32_t>(body, 0), bytes = NumberAt<uint32_t>(body, 4);
  TDOCK_ASSIGN_OR_RETURN(const std::span<const std::byte> lying, area_->Slot(slot, bytes));
  TDOCK_RETURN_IF_ERROR(OnBytes(tag, lying));
  Send(NumbersMessage(SocketMessage::kConsumed, tag, slot));
  return absl::OkStatus();
}

absl::Status SocketConnection::OnBytes(uint64_t tag, std::span<const std::byte> bytes) {
  const auto found = uploads_.find(tag);
  // The rest of a frame that failed.
  if (found == uploads_.end()) return absl::OkStatus();
  Upload& upload = *found->second;
  absl::Status status = upload.reader.Feed(bytes);
  if (status.ok() && !upload.reader.done()) return status;
  const std::unique_ptr<Upload> complete = std::move(found->second);
  uploads_.erase(found);
  absl::StatusOr<MetaBatch> batch = status.ok() ? complete->reader.Finish() : status;
  if (!batch.ok()) {
    ReplyError(tag, batch.status());
    return absl::OkStatus();
  }
  Start(std::move(complete->request), batch->columns());
  return absl::OkStatus();
}

void SocketConnection::Start(message::Request request, Batch batch) {
  const uint64_t call = request.call;
  loop_->Describe(NameOf(request), client_);
  shared_.service.Call(connection_->session(), std::move(request), std::move(batch), ReplyHere(call));
}

ReplyTo SocketConnection::ReplyHere(uint64_t call) {
  return [weak = weak_from_this(), loop = loop_, shared = shared_, session = connection_->session(),
          call](const std::shared_ptr<const Answer>& answer) {
    // One-way messages have no response.
    if (call == 0) return;
    const auto send = [weak, loop](Encoded encoded) {
      const auto post = [weak](Encoded ready) {
        const std::shared_ptr<SocketConnection> self = weak.lock();
        if (self != nullptr && !self->closed_) self->SendAnswer(std::move(ready));
      };
      if (loop->OnLoopThread()) return post(std::move(encoded));
      loop->Post([post, ready = std::make_shared<Encoded>(std::move(encoded))] { post(std::move(*ready)); });
    };
    WorkQueue* const work = shared.service.work();
    if (!answer->large || work == nullptr || WorkQueue::OnWorker()) {
      return send(MessageOf(shared, *session, call, *answer));
    }
    work->Post(session.get(),
               [shared, session, call, answer, send] { send(MessageOf(shared, *session, call, *answer)); });
  };
}

void SocketConnection::ReplyError(uint64_t call, const absl::Status& status) {
  const auto answer = std::make_shared<Answer>();
  Encode(status, &answer->reply);
  ReplyHere(call)(answer);
}

SocketConnection::Encoded SocketConnection::MessageOf(const Shared& shared, Session& session, uint64_t call,
                                                      const Answer& answer) {
  absl::StatusOr<Encoded> encoded =
      OrNoMemory("the answer", [&] { return TryToEncode(shared, session, call, answer); });
  if (encoded.ok()) return *std::move(encoded);
  const auto refusal = shared.service.Refuse(session, call, answer, encoded.status());
  return {.message = ControlMessage(SocketMessage::kReply, call, refusal->reply)};
}

absl::StatusOr<SocketConnection::Encoded> SocketConnection::TryToEncode(const Shared& shared, Session& session,
                                                                        uint64_t call, const Answer& answer) {
  if (answer.rows.empty()) return Encoded{.message = ControlMessage(SocketMessage::kReply, call, answer.reply)};
  absl::StatusOr<Encoded> encoded = EncodeRows(shared, call, answer, answer.rows);
  if (!absl::IsOutOfRange(encoded.status()) || answer.memory == nullptr) {
    if (encoded.ok()) session.Pin(call, answer.rows);
  } else {
    // If the response was sent before, the client may read the copies of that time.
    const Rows gathered = session.Pin(call, Gathered(answer.rows, *answer.memory));
    encoded = EncodeRows(shared, call, answer, gathered);
  }
  if (absl::IsOutOfRange(encoded.status())) return absl::ResourceExhaustedError(encoded.status().message());
  return encoded;
}

absl::StatusOr<SocketConnection::Encoded> SocketConnection::EncodeRows(const Shared& shared, uint64_t call,
                                                                       const Answer& answer, const Rows& rows) {
  Encoded encoded;
  message::Reply reply = answer.reply;
  message::Rows* const message = RowsIn(reply);
  const auto* const memory = dynamic_cast<const dock::SegmentMemory*>(answer.memory.get());
  absl::Status fault;
  absl::flat_hash_map<uint64_t, size_t> named;  // with their sizes
  const auto locate = [&](const std::byte* data) -> std::optional<SharedPlace> {
    const std::optional<dock::SegmentPlace> place = memory == nullptr ? std::nullopt : memory->Locate(data);
    if (!place.has_value()) return std::nullopt;
    auto known = named.find(place->segment);
    if (known == named.end()) {
      absl::StatusOr<dock::SegmentFile> segment = memory->Open(place->segment);
      if (!segment.ok()) {
        fault.Update(segment.status());
        return std::nullopt;
      }
      known = named.emplace(place->segment, segment->bytes).first;
      encoded.segments.emplace_back(place->segment, *std::move(segment));
    }
    return SharedPlace{place->segment, place->offset, known->second - place->offset};
  };
  const absl::Status status = EncodeViews(rows, locate, message, shared.limits.max_view_runs);
  fault.Update(status);
  TDOCK_RETURN_IF_ERROR(fault);
  message->pin = call;
  if (const size_t bytes = ByteSize(reply); bytes > kMaxSocketControlBytes) {
    const std::string text =
        absl::StrCat("an answer of ", bytes, " bytes, with the sizes and places of its cells; the limit is ",
                     kMaxSocketControlBytes, ": ask for fewer rows in one call");
    // Fewer runs would help only if there are many.
    const bool many = message->views.size() > shared.limits.max_view_runs / 8;
    return many ? absl::OutOfRangeError(text) : absl::ResourceExhaustedError(text);
  }
  encoded.message = ControlMessage(SocketMessage::kReply, call, reply);
  return encoded;
}

void SocketConnection::SendAnswer(Encoded answer) {
  TellGoneSegments();
  for (auto& [number, segment] : answer.segments) {
    if (!segments_.insert(number).second) continue;
    Send(NumbersMessage(SocketMessage::kSegment, 0, number, uint64_t{segment.bytes}), std::move(segment.file));
  }
  Send(std::move(answer.message));
}

void SocketConnection::TellGoneSegments() {
  const uint64_t closed = shared_.segments.closed_segments();
  if (closed == closed_segments_seen_) return;
  closed_segments_seen_ = closed;
  std::vector<uint64_t> gone;
  for (uint64_t segment : segments_) {
    if (!shared_.segments.Exists(segment)) gone.push_back(segment);
  }
  for (uint64_t segment : gone) {
    segments_.erase(segment);
    Send(NumbersMessage(SocketMessage::kGone, 0, segment));
  }
}

void SocketConnection::Send(std::string bytes, std::shared_ptr<const dock::FileDescriptor> file) {
  if (!loop_->OnLoopThread()) {
    return loop_->Post(
        [self = shared_from_this(), bytes = std::move(bytes), file = std::move(file)] { self->Send(bytes, file); });
  }
  if (closed_) return;
  queued_bytes_ += bytes.size();
  out_.push_back({.bytes = std::move(bytes), .file = std::move(file)});
  if (out_.size() == 1) Flush();
  if (!closed_) Watch();
}

void SocketConnection::Flush() {
  // The rest is sent in the next turn.
  for (size_t sent_bytes = 0; !out_.empty() && sent_bytes < kTurnBytes;) {
    Outgoing& next = out_.front();
    iovec piece{next.bytes.data() + next.sent, next.bytes.size() - next.sent};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    if (next.file != nullptr) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* const rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      const int fd = next.file->fd();
      std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
    }
    const ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      // The end of a connection is noticed when it is read.
      return;
    }
    next.file.reset();
    next.sent += static_cast<size_t>(sent);
    sent_bytes += static_cast<size_t>(sent);
    if (next.sent < next.bytes.size()) continue;
    queued_bytes_ -= std::min(queued_bytes_, next.bytes.size());
    out_.pop_front();
  }
}

void SocketConnection::Watch() {
  const bool reads = !choked() && !handed_over_ && !more_posted_;
  const uint32_t events = (reads ? uint32_t{EPOLLIN} : 0u) | (out_.empty() ? 0u : uint32_t{EPOLLOUT});
  if (events == watched_events_) return;
  watched_events_ = events;
  loop_->Change(fd_, events);
}

}  // namespace tdock::service
