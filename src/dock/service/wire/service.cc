#include "dock/service/wire/service.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <random>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/no_memory.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "dock/service/wire/field_codec.h"
#include "dock/service/wire/messages.h"
#include "dock/service/wire/rows_codec.h"
#include "dock/table/rows_data.h"
#include "tdock/verbs.h"

namespace tdock::service {
namespace {

// Session ids must be unguessable.
std::string RandomBytes(size_t count) {
  std::random_device device;
  std::string bytes;
  while (bytes.size() < count) bytes.push_back(static_cast<char>(device()));
  return bytes;
}

uint64_t RandomNumber() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

absl::Status ShuttingDown() { return absl::UnavailableError("the server is shutting down"); }

std::shared_ptr<const Answer> Failure(const absl::Status& status) {
  auto answer = std::make_shared<Answer>();
  Encode(status, &answer->reply);
  return answer;
}

// Messages with more bytes take long.
constexpr size_t kLongMessage = 64 << 10;
// Bytes for what a connection adds to a response: a pin, and how its cells follow.
constexpr size_t kMaxAdded = 64;

absl::Status CheckReplySize(uint64_t bytes) {
  constexpr uint64_t kMost = Service::kMaxControlBytes - kMaxAdded;
  if (bytes <= kMost) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("an answer of ", bytes, " bytes, not counting cells; the limit is ",
                                                   kMost, ": ask for less in one call"));
}

// The rows' message. Keys are counted before they are copied: a row with a long key may be named very often.
absl::StatusOr<message::Rows> EncodeRows(const Rows& rows) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < rows.size(); ++i) bytes += rows.key(i).size();
  TDOCK_RETURN_IF_ERROR(CheckReplySize(bytes));
  return Encode(rows);
}

// An empty response filled by `fill`, or its error, or ResourceExhausted if it is too long.
template <class F>
std::shared_ptr<const Answer> MakeAnswer(F fill) {
  auto answer = std::make_shared<Answer>();
  const absl::Status status = OrNoMemory("the answer", [&] { return fill(*answer); });
  if (!status.ok()) return Failure(status);
  const size_t bytes = ByteSize(answer->reply);
  if (absl::Status fits = CheckReplySize(bytes); !fits.ok()) return Failure(fits);
  answer->large = IsLarge(answer->rows) || bytes > kLongMessage;
  return answer;
}

// The rows of a put, which are consecutive. A range takes little room, if the client understands that: with millions of
// new rows, the put must not fail because it cannot be answered.
message::PutResult EncodeRowsOfPut(const std::vector<RowId>& rows, bool as_range) {
  if (!as_range || rows.empty()) return {.rows = rows};
  return {.first = rows.front(), .count = rows.size()};
}

// A decoded message, which may take several times the memory of its wire form.
template <class T>
absl::StatusOr<T> DecodeAs(absl::string_view message, absl::Time now = absl::UnixEpoch()) {
  return OrNoMemory("the request", [&]() -> absl::StatusOr<T> { return Decode<T>(message, now); });
}

// A row with the image as its cell, which is sent as cells are.
absl::Status SetReply(ExportedPartition image, Answer& answer) {
  const auto bytes = std::make_shared<const std::string>(std::move(image.bytes));
  Rows::Data data{.ids = {0}, .groups = {kNoGroup}, .pins = {bytes}};
  data.columns = std::make_shared<std::vector<ColumnSpec>>(1, ColumnSpec{"image", ColumnType::Bytes()});
  data.cells.push_back({std::as_bytes(std::span(*bytes)), kNoWeightsVersion, false});
  answer.rows = std::move(data).ToRows();
  // A long cell can only be sent from there.
  if (answer.memory != nullptr) answer.rows = Gathered(answer.rows, *answer.memory);
  TDOCK_ASSIGN_OR_RETURN(answer.reply.body, EncodeRows(answer.rows));
  return absl::OkStatus();
}

// The result of a verb, at `now`.
using message::Encoded;
message::ReplyBody BodyOf(std::vector<std::string> names, absl::Time) { return message::Names{std::move(names)}; }
message::ReplyBody BodyOf(std::vector<RowId> rows, absl::Time) { return message::RowIds{std::move(rows)}; }
message::ReplyBody BodyOf(absl::Time expires, absl::Time now) { return message::Remaining{ToWire(expires - now)}; }
message::ReplyBody BodyOf(int64_t count, absl::Time) { return count; }
message::ReplyBody BodyOf(std::string text, absl::Time) { return Encoded{Encoded::kText, std::move(text)}; }
template <HasFields T>
message::ReplyBody BodyOf(const T& result, absl::Time now) {
  const auto number = std::is_same_v<T, ListResult>        ? Encoded::kList
                      : std::is_same_v<T, PartitionStatus> ? Encoded::kStatus
                      : std::is_same_v<T, ConsumerStatus>  ? Encoded::kConsumerStatus
                                                           : Encoded::kRowStatus;
  return Encoded{number, Encode(result, now)};
}

}  // namespace

Service::Service(dock::ServedDock& dock, const ServiceOptions& options)
    : dock_(dock),
      options_(options),
      dock_clock_(options.dock_clock == nullptr ? Clock::Real() : *options.dock_clock),
      clock_(options.clock == nullptr ? Clock::Real() : *options.clock),
      instance_(RandomNumber()),
      reaper_([this] { Reap(); }) {}

Service::~Service() {
  Drain();
  std::vector<std::shared_ptr<Session>> sessions;
  {
    MutexLock lock(mu_);
    stopping_ = true;
    for (const auto& [id, session] : sessions_) sessions.push_back(session);
    changed_.NotifyAll();
  }
  reaper_.join();
  for (const auto& session : sessions) EndIfAlone(session, std::numeric_limits<uint64_t>::max());
  MutexLock lock(mu_);
  while (under_way_ > 0) all_answered_.Wait(mu_);
}

absl::StatusOr<Service::Welcomed> Service::Connect(const message::Hello& hello) {
  std::shared_ptr<Session> session;
  bool resumed = false;
  {
    MutexLock lock(mu_);
    if (draining_) return ShuttingDown();
    const auto found = sessions_.find(hello.session);
    resumed = found != sessions_.end();
    if (resumed) {
      session = found->second;
    } else {
      std::string id = RandomBytes(16);
      session = std::make_shared<Session>(id, EscapeForMessage(hello.client, kMaxClientName), Session::kMaxBytes,
                                          options_.work);
      sessions_.emplace(std::move(id), session);
    }
    // Under the lock, so that the session does not end in between.
    session->Attach();
  }
  Welcomed welcomed;
  welcomed.connection = std::make_unique<Connection>(*this, session);
  welcomed.welcome = {
      .session = session->id(), .instance = instance_, .resumed = resumed, .max_frame_bytes = options_.max_frame_bytes};
  return welcomed;
}

void Service::Disconnect(const std::shared_ptr<Session>& session) {
  const Session::Attachments left = session->Detach();
  if (left.now > 0) return;
  MutexLock lock(mu_);
  endings_.push_back({clock_.Now() + options_.session_grace, session, left.ever});
  changed_.NotifyAll();
}

void Service::Reap() {
  for (;;) {
    Ending ending;
    {
      MutexLock lock(mu_);
      for (;;) {
        if (stopping_) return;
        const absl::Time next = endings_.empty() ? absl::InfiniteFuture() : endings_.front().at;
        if (next <= clock_.Now()) break;
        clock_.Wait(changed_, mu_, next);
      }
      ending = std::move(endings_.front());
      endings_.pop_front();
    }
    EndIfAlone(ending.session, ending.connections_ever);
  }
}

void Service::EndIfAlone(const std::shared_ptr<Session>& session, uint64_t connections_ever) {
  std::optional<Session::Leftovers> leftovers;
  {
    MutexLock lock(mu_);
    leftovers = session->EndIfAlone(connections_ever);
    if (!leftovers.has_value()) return;
    sessions_.erase(session->id());
  }
  // A cancelled call is answered at once, which takes mu_.
  for (const std::stop_source& call : leftovers->under_way) RequestStop(call);
  std::map<std::string, std::vector<LeaseId>> by_partition;
  for (HeldLease& held : leftovers->leases) by_partition[std::move(held.partition)].push_back(held.lease);
  // A partition that no longer exists has no leases either.
  for (const auto& [partition, ids] : by_partition) {
    const std::shared_ptr<void> is_long = dock_.BeginLong(partition);
    dock_.ExpireLeases(partition, ids).IgnoreError();
  }
}

void Service::Drain() {
  std::vector<std::shared_ptr<Session>> sessions;
  {
    MutexLock lock(mu_);
    draining_ = true;
    for (const auto& [id, session] : sessions_) sessions.push_back(session);
  }
  for (const auto& session : sessions) session->CancelAll();
}

Service::Counts Service::counts() {
  std::vector<std::shared_ptr<Session>> sessions;
  {
    MutexLock lock(mu_);
    for (const auto& [id, session] : sessions_) sessions.push_back(session);
  }
  Counts counts{.sessions = static_cast<int64_t>(sessions.size()), .calls = calls_.load()};
  for (const auto& session : sessions) {
    const Session::Counts of = session->counts();
    counts.calls_under_way += of.calls;
    counts.pins += of.pins;
    counts.leases += of.leases;
  }
  return counts;
}

void Service::AwaitNoCalls(absl::Time deadline) {
  MutexLock lock(mu_);
  for (;;) {
    const absl::Duration left = deadline - absl::Now();
    if (under_way_ == 0 || left <= absl::ZeroDuration()) return;
    all_answered_.WaitUntil(
        mu_, std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(std::min(left, absl::Hours(1))));
  }
}

void Service::Call(const std::shared_ptr<Session>& session, message::Request request, Batch batch, ReplyTo reply) {
  calls_.fetch_add(1, std::memory_order_relaxed);
  const Session::Acknowledged acknowledged{request.answered_below, request.answered};
  // One-way messages need no place in the session.
  if (request.verb == message::kAcknowledge) {
    session->Acknowledge(acknowledged);
    const absl::StatusOr<message::Release> release = Parse<message::Release>(request.body);
    if (release.ok()) session->Unpin(release->pins);
    return reply(release.ok() ? std::make_shared<Answer>() : Failure(release.status()));
  }
  if (request.verb == message::kCancel) {
    const absl::StatusOr<message::Cancel> cancel = Parse<message::Cancel>(request.body);
    if (cancel.ok()) session->Cancel(cancel->call);
    return reply(cancel.ok() ? std::make_shared<Answer>() : Failure(cancel.status()));
  }
  if (!request.released.empty()) {
    session->Acknowledge(acknowledged);
    session->Unpin(request.released);
  }
  const absl::StatusOr<Session::Begun> begun = session->Begin(request.call, acknowledged, reply);
  if (!begun.ok()) {
    reply(Failure(begun.status()));
    return;
  }
  if (!begun->is_new) return;
  const auto finish = [this, session, call = request.call](std::shared_ptr<const Answer> answer) {
    if (draining_ && answer->reply.code == static_cast<uint32_t>(absl::StatusCode::kCancelled)) {
      answer = Failure(ShuttingDown());
    }
    session->Finish(call, std::move(answer));
    MutexLock lock(mu_);
    if (--under_way_ == 0) all_answered_.NotifyAll();
  };
  {
    MutexLock lock(mu_);
    ++under_way_;
  }
  if (draining_) {
    finish(Failure(ShuttingDown()));
    return;
  }
  const Caller caller{session, begun->cancel, finish, session->LastDiscard()};
  const bool is_verb =
      VisitVerb(request.verb, [&]<class V>() { Do<V>(caller, std::move(request.body), std::move(batch)); });
  if (is_verb) return;
  const auto status = request.verb == message::kPing ? absl::OkStatus()
                                                     : absl::UnimplementedError(
                                                           "the server does not know this request: use the "
                                                           "same release on both sides");
  const auto answer = [finish, status] { finish(MakeAnswer([&](Answer&) { return status; })); };
  caller.discard == 0 ? answer() : DoLong(caller, "", answer);
}

template <class Work>
void Service::DoLong(const Caller& caller, absl::string_view partition, Work work) {
  if (options_.work == nullptr || (caller.discard == 0 && WorkQueue::OnWorker())) {
    const std::shared_ptr<void> is_long = dock_.BeginLong(partition);
    return work();
  }
  options_.work->Post(caller.session.get(), [this, session = caller.session, discard = caller.discard,
                                             partition = std::string(partition), work = std::move(work)]() mutable {
    // Whatever the client released before is free when this is done.
    session->AwaitDiscards(discard);
    const std::shared_ptr<void> is_long = dock_.BeginLong(partition);
    work();
  });
}

template <class V>
bool Service::IsLong(const typename V::Request& request) {
  if constexpr (std::is_same_v<V, verbs::ListPartitions>) {
    constexpr int64_t kManyNames = 1024;
    return dock_.CountPartitions() > kManyNames;
  } else {
    dock::ServedDock::Load load;
    if constexpr (std::is_same_v<V, verbs::CreatePartition>) {
      load = dock_.LoadOf(request.name);
    } else if constexpr (std::is_same_v<typename V::Request, LeaseRequest>) {
      load = dock_.LoadOf(request.partition, request.lease);
    } else if constexpr (requires { request.partition; }) {
      load = dock_.LoadOf(request.partition);
    }
    // It may have to wait for a long call.
    return load.busy || load.scarce || dock::TakesLong<V>(request, load);
  }
}

template <class V>
void Service::Do(const Caller& caller, std::string body, Batch batch) {
  const auto later = [&](Batch kept) {
    DoLong(caller, FirstText(body), [this, caller = caller.Long(), body, kept = std::move(kept)]() mutable {
      Do<V>(caller, std::move(body), std::move(kept));
    });
  };
  // To decode a long message takes long, too.
  if (!caller.is_long && (caller.discard != 0 || body.size() > kLongMessage)) return later(std::move(batch));
  typename V::Request request;
  if constexpr (HasFields<typename V::Request>) {
    auto decoded = DecodeAs<typename V::Request>(body, Now());
    if (!decoded.ok()) return caller.finish(Failure(decoded.status()));
    request = *std::move(decoded);
  }
  Batch* const sent = BatchOf(request);
  if (sent != nullptr) std::swap(*sent, batch);
  if (!caller.is_long && IsLong<V>(request)) return later(std::move(sent == nullptr ? batch : *sent));
  if constexpr (requires { request.lease; }) {
    if (absl::Status status = CheckLease(request.lease); !status.ok()) return caller.finish(Failure(status));
  }
  if constexpr (requires { request.cancel; }) {
    request.cancel = caller.cancel;
    Wait(caller, std::move(request), body);
  } else {
    caller.finish(MakeAnswer([&](Answer& answer) -> absl::Status {
      if constexpr (std::is_same_v<typename V::Reply, Nothing>) {
        return Ask<V>(dock_, request);
      } else if constexpr (std::is_same_v<V, verbs::ExportPartition>) {
        TDOCK_ASSIGN_OR_RETURN(ExportedPartition image, Ask<V>(dock_, request));
        answer.memory = MemoryOf(request.partition);
        return SetReply(std::move(image), answer);
      } else {
        TDOCK_ASSIGN_OR_RETURN(typename V::Reply result, Ask<V>(dock_, request));
        answer.reply.body = BodyOf(std::move(result), Now());
        return absl::OkStatus();
      }
    }));
  }
}

void Service::Wait(const Caller& caller, PutRequest request, absl::string_view body) {
  const bool as_range = NumberIn(body, kReadsRange) != 0;
  dock_.StartPut(std::move(request), [finish = caller.finish, as_range](const absl::StatusOr<PutResult>& result) {
    finish(MakeAnswer([&](Answer& answer) {
      if (result.ok()) answer.reply.body = EncodeRowsOfPut(result->rows, as_range);
      return result.status();
    }));
  });
}

void Service::Wait(const Caller& caller, FetchRequest request, absl::string_view) {
  std::shared_ptr<Memory> memory = MemoryOf(request.partition);
  dock_.StartFetch(std::move(request), [finish = caller.finish, memory](const absl::StatusOr<Rows>& rows) {
    finish(MakeAnswer([&](Answer& answer) -> absl::Status {
      if (!rows.ok()) return rows.status();
      answer.memory = memory;
      answer.rows = *rows;
      TDOCK_ASSIGN_OR_RETURN(answer.reply.body, EncodeRows(*rows));
      return absl::OkStatus();
    }));
  });
}

void Service::Wait(const Caller& caller, TakeRequest request, absl::string_view) {
  const std::string partition = request.partition;
  std::shared_ptr<Memory> memory = MemoryOf(partition);
  dock_.StartTake(std::move(request), [this, session = caller.session, finish = caller.finish, partition,
                                       memory](const absl::StatusOr<Taken>& taken) {
    if (!taken.ok()) return finish(Failure(taken.status()));
    const HeldLease lease{partition, taken->lease};
    std::shared_ptr<const Answer> answer = MakeAnswer([&](Answer& filled) -> absl::Status {
      filled.memory = memory;
      filled.rows = taken->rows;
      filled.lease = lease;
      TDOCK_ASSIGN_OR_RETURN(message::Rows rows, EncodeRows(taken->rows));
      filled.reply.body = message::Taken{taken->lease, ToWire(taken->expires - Now()), std::move(rows)};
      return absl::OkStatus();
    });
    if (answer->reply.code != 0) {
      GiveBack(lease);
    } else if (lease.lease != kNoLease && !session->Hold(lease)) {
      Expire(lease);
      answer = Failure(absl::FailedPreconditionError("the session is over, and so are its leases"));
    }
    CheckLeases(session);
    finish(std::move(answer));
  });
}

void Service::GiveBack(const HeldLease& lease) {
  if (lease.lease == kNoLease) return;
  // A partition that no longer exists has no leases either.
  dock_.Release({.partition = lease.partition, .lease = lease.lease}).IgnoreError();
}

void Service::Expire(const HeldLease& lease) {
  if (lease.lease == kNoLease) return;
  // A partition that no longer exists has no leases either.
  dock_.ExpireLeases(lease.partition, std::span(&lease.lease, 1)).IgnoreError();
}

std::shared_ptr<const Answer> Service::Refuse(Session& session, uint64_t call, const Answer& answer,
                                              const absl::Status& why) {
  std::shared_ptr<const Answer> refusal = Failure(why);
  session.Replace(call, refusal);
  session.Unpin(std::span(&call, 1));
  GiveBack(answer.lease);
  return refusal;
}

std::shared_ptr<Memory> Service::MemoryOf(const std::string& partition) {
  // If there is no such partition, the call fails.
  absl::StatusOr<std::shared_ptr<Memory>> memory = dock_.MemoryOf(partition);
  return memory.ok() ? *std::move(memory) : nullptr;
}

void Service::CheckLeases(const std::shared_ptr<Session>& session) {
  for (const HeldLease& held : session->TakeLeasesToCheck()) {
    // If that may take long, it is asked again later.
    if (!dock_.LoadOf(held.partition).busy) {
      const absl::StatusOr<std::vector<LeaseId>> live = dock_.LiveLeases(held.partition, std::span(&held.lease, 1));
      if (!live.ok() || live->empty()) continue;
    }
    if (!session->Hold(held)) Expire(held);
  }
}

absl::Status Service::CheckLease(LeaseId lease) const {
  if (lease == kNoLease || lease > options_.last_lease) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "lease ", lease, " was not given out since the server started: leases end with the server that gave them out"));
}

}  // namespace tdock::service
