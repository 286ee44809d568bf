#include "dock/service/wire/dock_connection.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/no_memory.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "dock/service/wire/field_codec.h"
#include "dock/service/wire/messages.h"
#include "dock/service/wire/rows_codec.h"

namespace tdock::service {
namespace {

// Long work is left to workers: a control message of this size, the header of a frame, or a frame.
constexpr uint32_t kLongMessageBytes = 16 << 10;
constexpr uint64_t kLongHeaderBytes = 16 << 10;
constexpr uint64_t kLongFrameBytes = 1 << 20;

static_assert(kMaxControlBytes == Service::kMaxControlBytes);

}  // namespace

absl::StatusOr<net::Welcome> WelcomeToDock(const ConnectionShared& shared,
                                           const std::shared_ptr<net::Connection>& connection, absl::string_view rest) {
  TDOCK_ASSIGN_OR_RETURN(const message::Hello hello, Parse<message::Hello>(rest));
  TDOCK_ASSIGN_OR_RETURN(Service::Welcomed welcomed, shared.service.Connect(hello));
  net::Welcome welcome;
  std::optional<dock::UploadArea> area;
  if (connection->stream().passes_files()) {
    const ConnectionLimits& limits = shared.limits;
    TDOCK_ASSIGN_OR_RETURN(area, welcomed.connection->session()->Upload(limits.upload_slots, limits.upload_slot_bytes));
    welcomed.welcome.upload_slots = limits.upload_slots;
    welcomed.welcome.upload_slot_bytes = limits.upload_slot_bytes;
    welcome.file = area->file();
  }
  welcome.body = Serialize(welcomed.welcome);
  std::string client = absl::StrCat("for client '", EscapeForMessage(hello.client.substr(0, 64)), "'");
  welcome.handler = std::make_unique<DockConnection>(shared, connection, std::move(welcomed.connection),
                                                     std::move(client), std::move(area));
  return welcome;
}

DockConnection::DockConnection(const ConnectionShared& shared, const std::shared_ptr<net::Connection>& connection,
                               std::unique_ptr<Service::Connection> session, std::string client,
                               std::optional<dock::UploadArea> area)
    : shared_(shared),
      connection_(connection),
      loop_(connection->loop().shared_from_this()),
      client_(std::move(client)),
      area_(std::move(area)),
      session_(std::move(session)) {}

void DockConnection::OnClosed(const absl::Status&) {
  closed_ = true;
  if (handed_over_) return;
  uploads_.clear();
  session_.reset();
}

template <class Work>
absl::Status DockConnection::HandOver(Work work) {
  const std::shared_ptr<net::Connection> connection = connection_.lock();
  handed_over_ = true;
  connection->Pause();
  shared_.service.work()->Post(session_->session().get(), [this, connection, work = std::move(work)] {
    const absl::Status status = OrNoMemory("the message", work);
    // The connection keeps this object.
    loop_->Post([this, connection, status] { TakeBack(status); });
  });
  return absl::OkStatus();
}

void DockConnection::TakeBack(const absl::Status& status) {
  handed_over_ = false;
  if (closed_) return OnClosed(absl::OkStatus());
  connection_.lock()->Resume(status);
}

absl::Status DockConnection::OnMessage(const net::MessageHeader& header, absl::string_view body) {
  const bool can_hand_over = shared_.service.work() != nullptr;
  if (header.type == kCall) {
    if (!can_hand_over || body.size() <= kLongMessageBytes) return OnCall(header.tag, body);
    return HandOver([this, tag = header.tag, kept = std::string(body)] { return OnCall(tag, kept); });
  }
  if (header.type != kSlot) {
    return absl::InvalidArgumentError(
        absl::StrCat("a client does not send messages of type ", static_cast<int>(header.type)));
  }
  if (body.size() != 8) return absl::InvalidArgumentError("a slot message that does not have 8 bytes");
  const auto found = uploads_.find(header.tag);
  const auto lying = area_->Slot(net::NumberAt<uint32_t>(body, 0), net::NumberAt<uint32_t>(body, 4));
  const bool is_long = can_hand_over && lying.ok() && found != uploads_.end() &&
                       found->second->reader.WouldCompleteHeader(*lying, kLongHeaderBytes);
  if (!is_long) return OnSlot(header.tag, body);
  return HandOver([this, tag = header.tag, kept = std::string(body)] { return OnSlot(tag, kept); });
}

absl::Status DockConnection::OnCall(uint64_t tag, absl::string_view body) {
  absl::StatusOr<message::Request> parsed = OrNoMemory("the request", [&] { return Parse<message::Request>(body); });
  if (absl::IsResourceExhausted(parsed.status())) {
    NoteEnd(tag);
    ReplyError(tag, parsed.status());
    return absl::OkStatus();
  }
  if (!parsed.ok()) return absl::InvalidArgumentError(absl::StrCat("request ", tag, " cannot be read"));
  message::Request& request = *parsed;
  if (!HasFrame(request)) {
    Start(std::move(request), Batch());
    return absl::OkStatus();
  }
  if (uploads_.size() >= shared_.limits.max_uploads) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", shared_.limits.max_uploads, " puts at once over one connection"));
  }
  ended_.erase(tag);
  if (uploads_.contains(tag)) return absl::InvalidArgumentError(absl::StrCat("two puts with the number ", tag));
  FrameLimits limits;
  limits.allow_unchecked = true;
  limits.max_frame_bytes = shared_.service.max_frame_bytes();
  // If there is no such partition, the dock says so when it gets the put.
  const absl::StatusOr<std::shared_ptr<Memory>> memory = shared_.service.MemoryFor(FirstText(request.body));
  const auto allocate = [memory = memory.ok() ? *memory : nullptr](size_t bytes) {
    return memory == nullptr ? Buffer::Allocate(bytes) : memory->Allocate(bytes);
  };
  uploads_.emplace(tag, std::unique_ptr<Upload>(new Upload{std::move(request), FrameReader(limits, allocate)}));
  return absl::OkStatus();
}

absl::Status DockConnection::OnSlot(uint64_t tag, absl::string_view body) {
  const auto slot = net::NumberAt<uint32_t>(body, 0), bytes = net::NumberAt<uint32_t>(body, 4);
  TDOCK_ASSIGN_OR_RETURN(const std::span<const std::byte> lying, area_->Slot(slot, bytes));
  if (const auto found = uploads_.find(tag); found != uploads_.end()) {
    const uint64_t offset = std::exchange(found->second->in_slots, found->second->in_slots + lying.size());
    TDOCK_RETURN_IF_ERROR(Place(tag, offset, lying));
  }
  if (const auto connection = connection_.lock()) connection->Send(net::NumbersMessage(kConsumed, tag, slot));
  return absl::OkStatus();
}

bool DockConnection::IsReadyForJoined(uint64_t tag) {
  // The rest of a frame that failed is dropped.
  const auto found = uploads_.find(tag);
  return found == uploads_.end() ? ended_.contains(tag) : found->second->reader.has_header();
}

void DockConnection::RoomsFor(uint64_t tag, uint64_t offset, size_t most, std::vector<iovec>& rooms) {
  const auto found = uploads_.find(tag);
  if (found != uploads_.end()) found->second->reader.RoomsFor(offset, most, rooms);
}

absl::Status DockConnection::OnFilled(uint64_t tag, uint64_t offset, size_t bytes) {
  const auto found = uploads_.find(tag);
  return found == uploads_.end() ? absl::OkStatus() : CheckUpload(tag, found->second->reader.Filled(offset, bytes));
}

absl::Status DockConnection::OnData(uint64_t tag, uint64_t offset, std::span<const std::byte> bytes) {
  const auto found = uploads_.find(tag);
  if (found == uploads_.end()) return absl::OkStatus();
  const bool is_long =
      shared_.service.work() != nullptr && found->second->reader.WouldCompleteHeader(bytes, kLongHeaderBytes);
  if (!is_long) return Place(tag, offset, bytes);
  return HandOver(
      [this, tag, offset, kept = std::vector(bytes.begin(), bytes.end())] { return Place(tag, offset, kept); });
}

absl::Status DockConnection::Place(uint64_t tag, uint64_t offset, std::span<const std::byte> bytes) {
  const auto found = uploads_.find(tag);
  return found == uploads_.end() ? absl::OkStatus() : CheckUpload(tag, found->second->reader.Place(offset, bytes));
}

void DockConnection::NoteEnd(uint64_t tag) {
  constexpr size_t kMaxEnded = 64;
  if (ended_.size() == kMaxEnded) ended_.erase(ended_.begin());
  ended_.insert(tag);
}

// An upload that got bytes, with this result: it may be complete.
absl::Status DockConnection::CheckUpload(uint64_t tag, const absl::Status& status) {
  const auto found = uploads_.find(tag);
  if (status.ok() && !found->second->reader.done()) return absl::OkStatus();
  const std::shared_ptr<Upload> complete = std::move(found->second);
  uploads_.erase(found);
  NoteEnd(tag);
  if (!status.ok()) {
    ReplyError(tag, status);
    return absl::OkStatus();
  }
  const auto finish = [this, complete, tag] {
    const absl::StatusOr<MetaBatch> batch = complete->reader.Finish();
    batch.ok() ? Start(std::move(complete->request), batch->columns()) : ReplyError(tag, batch.status());
    return absl::OkStatus();
  };
  const bool is_long = complete->reader.frame_bytes() >= kLongFrameBytes;
  const bool here = !is_long || shared_.service.work() == nullptr || WorkQueue::OnWorker();
  return here ? finish() : HandOver(finish);
}

void DockConnection::Start(message::Request request, Batch batch) {
  const uint64_t call = request.call;
  loop_->Describe(NameOf(request), client_);
  shared_.service.Call(session_->session(), std::move(request), std::move(batch), ReplyHere(call));
}

ReplyTo DockConnection::ReplyHere(uint64_t call) {
  return [this, weak = connection_, loop = loop_, shared = shared_, is_local = area_.has_value(),
          session = session_->session(), call](const std::shared_ptr<const Answer>& answer) {
    // One-way messages have no response.
    if (call == 0) return;
    const auto send = [this, weak, loop](Encoded encoded) {
      const auto post = [this, weak](Encoded ready) {
        // The connection keeps this object.
        const std::shared_ptr<net::Connection> connection = weak.lock();
        if (connection != nullptr && !connection->closed()) SendAnswer(std::move(ready));
      };
      if (loop->OnLoopThread()) return post(std::move(encoded));
      loop->Post([post, ready = std::make_shared<Encoded>(std::move(encoded))] { post(std::move(*ready)); });
    };
    WorkQueue* const work = shared.service.work();
    if (!answer->large || work == nullptr || WorkQueue::OnWorker()) {
      return send(MessageOf(shared, is_local, *session, call, *answer));
    }
    work->Post(session.get(), [shared, is_local, session, call, answer, send] {
      send(MessageOf(shared, is_local, *session, call, *answer));
    });
  };
}

void DockConnection::ReplyError(uint64_t call, const absl::Status& status) {
  const auto answer = std::make_shared<Answer>();
  Encode(status, &answer->reply);
  ReplyHere(call)(answer);
}

DockConnection::Encoded DockConnection::MessageOf(const ConnectionShared& shared, bool is_local, Session& session,
                                                  uint64_t call, const Answer& answer) {
  absl::StatusOr<Encoded> encoded =
      OrNoMemory("the answer", [&] { return TryToEncode(shared, is_local, session, call, answer); });
  if (encoded.ok()) return *std::move(encoded);
  const auto refusal = shared.service.Refuse(session, call, answer, encoded.status());
  return {.message = ControlMessage(kReply, call, refusal->reply)};
}

absl::StatusOr<DockConnection::Encoded> DockConnection::TryToEncode(const ConnectionShared& shared, bool is_local,
                                                                    Session& session, uint64_t call,
                                                                    const Answer& answer) {
  if (answer.rows.empty()) return Encoded{.message = ControlMessage(kReply, call, answer.reply)};
  if (!is_local) return EncodeWithBytes(shared, session, call, answer);
  absl::StatusOr<Encoded> encoded = EncodeWithViews(shared, call, answer, answer.rows);
  if (!absl::IsOutOfRange(encoded.status()) || answer.memory == nullptr) {
    if (encoded.ok()) session.Pin(call, answer.rows);
  } else {
    // If the response was sent before, the client may read the copies of that time.
    const Rows gathered = session.Pin(call, Gathered(answer.rows, *answer.memory));
    encoded = EncodeWithViews(shared, call, answer, gathered);
  }
  if (absl::IsOutOfRange(encoded.status())) return absl::ResourceExhaustedError(encoded.status().message());
  return encoded;
}

absl::StatusOr<DockConnection::Encoded> DockConnection::EncodeWithBytes(const ConnectionShared& shared,
                                                                        Session& session, uint64_t call,
                                                                        const Answer& answer) {
  message::Reply reply = answer.reply;
  message::Rows& rows = *RowsIn(reply);
  TDOCK_ASSIGN_OR_RETURN(StreamedCells cells, EncodeStreamed(answer.rows, rows, shared.service.max_frame_bytes()));
  // The dock's bytes count as held until the client says that its copy is gone, as they do if rows are views.
  rows.pin = call;
  if (const size_t bytes = ByteSize(reply); bytes > kMaxControlBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("an answer of ", bytes,
                                                     " bytes, with the sizes of its cells; the "
                                                     "limit is ",
                                                     kMaxControlBytes, ": ask for fewer rows in one call"));
  }
  session.Pin(call, answer.rows);
  return Encoded{.message = ControlMessage(kReply, call, reply),
                 .pieces = std::move(cells.pieces),
                 .owner = std::make_shared<std::pair<Rows, std::shared_ptr<const void>>>(answer.rows, cells.copies)};
}

absl::StatusOr<DockConnection::Encoded> DockConnection::EncodeWithViews(const ConnectionShared& shared, uint64_t call,
                                                                        const Answer& answer, const Rows& rows) {
  Encoded encoded;
  message::Reply reply = answer.reply;
  message::Rows& message = *RowsIn(reply);
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
  const absl::Status status = EncodeViews(rows, locate, &message, shared.limits.max_view_runs);
  fault.Update(status);
  TDOCK_RETURN_IF_ERROR(fault);
  message.pin = call;
  if (const size_t bytes = ByteSize(reply); bytes > kMaxControlBytes) {
    const std::string text =
        absl::StrCat("an answer of ", bytes, " bytes, with the sizes and places of its cells; the limit is ",
                     kMaxControlBytes, ": ask for fewer rows in one call");
    // Fewer runs would help only if there are many.
    const bool many = std::ssize(message.views) > shared.limits.max_view_runs / 8;
    return many ? absl::OutOfRangeError(text) : absl::ResourceExhaustedError(text);
  }
  encoded.message = ControlMessage(kReply, call, reply);
  return encoded;
}

void DockConnection::SendAnswer(Encoded answer) {
  const std::shared_ptr<net::Connection> connection = connection_.lock();
  if (!answer.pieces.empty()) {
    const auto tag = net::NumberAt<uint64_t>(answer.message, offsetof(net::MessageHeader, tag));
    return connection->SendData(std::move(answer.message), tag, std::move(answer.pieces), std::move(answer.owner));
  }
  TellGoneSegments();
  for (auto& [number, segment] : answer.segments) {
    if (!segments_.insert(number).second) continue;
    connection->Send(net::NumbersMessage(kSegment, 0, number, uint64_t{segment.bytes}), std::move(segment.file));
  }
  connection->Send(std::move(answer.message));
}

void DockConnection::TellGoneSegments() {
  const uint64_t closed = shared_.segments.closed_segments();
  if (closed == closed_segments_seen_) return;
  closed_segments_seen_ = closed;
  const std::shared_ptr<net::Connection> connection = connection_.lock();
  for (auto it = segments_.begin(); it != segments_.end();) {
    const auto segment = it++;
    if (shared_.segments.Exists(*segment)) continue;
    connection->Send(net::NumbersMessage(kGone, 0, *segment));
    segments_.erase(segment);
  }
}

}  // namespace tdock::service
