#include "runtime/replica/replica.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "runtime/replica/rows_message.h"

namespace tdock::runtime {
namespace {

// The facts of messages.
constexpr char kOutcome[] = "outcome", kLease[] = "lease", kCode[] = "code", kText[] = "text";

int64_t NumberIn(const Meta& facts, const char* name) {
  const auto found = facts.find(name);
  const int64_t* value = found == facts.end() ? nullptr : found->second.As<int64_t>();
  return value == nullptr ? 0 : *value;
}

std::string TextIn(const Meta& facts, const char* name) {
  const auto found = facts.find(name);
  const std::string* value = found == facts.end() ? nullptr : found->second.As<std::string>();
  return value == nullptr ? "" : *value;
}

Meta FactsOf(const absl::Status& status) {
  return {{kCode, static_cast<int64_t>(status.code())}, {kText, std::string(status.message())}};
}

absl::Status StatusIn(const Meta& facts) {
  return {static_cast<absl::StatusCode>(NumberIn(facts, kCode)), TextIn(facts, kText)};
}

// What `body` returns, or what it throws as an error.
template <class Body>
auto NoThrow(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  } catch (...) {
    return absl::InternalError("an exception that is no std::exception");
  }
}

// A message that says what `status` is, where one with more cannot be made.
absl::StatusOr<Buffer> Encoded(const absl::StatusOr<Buffer>& message) {
  return message.ok() ? message : Encode({.facts = FactsOf(message.status())});
}

}  // namespace

ConsumerOptions WithShares(ConsumerOptions consumer, const MeshSizes& sizes) {
  consumer.ranks = static_cast<int32_t>(sizes.dp);
  return consumer;
}

// What the ranks of a replica have of a take.
struct Replica::Given {
  Outcome outcome = Outcome::kDone;
  Taken taken = {};
  // Whether this rank has the rows.
  absl::Status received = absl::OkStatus();
};

absl::StatusOr<Replica> Replica::Make(const Options& options) {
  TDOCK_RETURN_IF_ERROR(AsksDock(options.at, options.sizes).status());  // the coordinates are in the mesh
  const MeshSizes& sizes = options.sizes;
  const MeshCoordinates& at = options.at;
  const int64_t ranks = sizes.tp * sizes.cp * sizes.pp;
  const int64_t place = at.tp + sizes.tp * (at.cp + sizes.cp * at.pp);
  if (options.group.size() != ranks || options.group.rank() != place) {
    return absl::InvalidArgumentError(absl::StrCat("a replica of tp ", sizes.tp, ", cp ", sizes.cp, ", pp ", sizes.pp,
                                                   " has ", ranks, " ranks, and this is number ", place,
                                                   "; the group has ", options.group.size(), ", and this is number ",
                                                   options.group.rank()));
  }
  return Replica(options, static_cast<int>(sizes.tp * sizes.cp * (sizes.pp - 1)));
}

absl::Status Replica::Name(const absl::Status& status) const {
  const MeshCoordinates& at = options_.at;
  return Annotate(status, absl::StrCat("replica ", at.dp, ", rank ", options_.group.rank(), " (tp ", at.tp, ", cp ",
                                       at.cp, ", pp ", at.pp, ")"));
}

absl::Status Replica::Agree(const absl::Status& mine) {
  // The lowest rank with an error has the largest number.
  const int size = options_.group.size();
  const int64_t number = mine.ok() ? 0 : size - options_.group.rank();
  TDOCK_ASSIGN_OR_RETURN(const int64_t largest, options_.group.AllReduceMax(number, Deadline()));
  if (largest == 0) return absl::OkStatus();
  absl::StatusOr<Buffer> message = Buffer();
  if (largest == number) message = Encode({.facts = FactsOf(Name(mine))});
  TDOCK_RETURN_IF_ERROR(message.status());
  TDOCK_ASSIGN_OR_RETURN(const Buffer said,
                         options_.group.Broadcast(*std::move(message), size - static_cast<int>(largest), Deadline()));
  TDOCK_ASSIGN_OR_RETURN(const RowsMessage decoded, Decode(said));
  return StatusIn(decoded.facts);
}

absl::StatusOr<Replica::Given> Replica::TakeTogether(const TakeRequest& request) {
  Given given;
  Buffer message;
  if (asks()) {
    absl::StatusOr<Taken> taken = NoThrow([&] { return options_.dock.Take(request); });
    if (taken.ok()) given.taken = *std::move(taken);
    if (absl::IsDeadlineExceeded(taken.status())) {
      // The same code says that a dock in another process does not answer; then it does not answer this either.
      const absl::Status answers =
          NoThrow([&] { return options_.dock.GetConsumerStatus(request.partition, request.consumer).status(); });
      if (answers.ok()) given.outcome = Outcome::kNothingReady;
    }
    if (absl::IsOutOfRange(taken.status())) given.outcome = Outcome::kNoMoreRows;
    absl::StatusOr<Buffer> encoded = NoThrow([&]() -> absl::StatusOr<Buffer> {
      if (!taken.ok() && given.outcome == Outcome::kDone) return Name(taken.status());
      return Encode({.facts = {{kOutcome, static_cast<int64_t>(given.outcome)},
                               {kLease, static_cast<int64_t>(given.taken.lease)}},
                     .rows = given.taken.rows});
    });
    given.received = encoded.status();
    TDOCK_ASSIGN_OR_RETURN(message, Encoded(encoded));
  }
  // The leader may wait for rows until the deadline of the request.
  const absl::Time deadline = std::max(request.deadline, options_.clock.Now()) + options_.patience;
  const absl::StatusOr<Buffer> said = options_.group.Broadcast(std::move(message), kLeader, deadline);
  if (asks()) {
    const absl::Status& failed = said.ok() ? given.received : said.status();
    if (failed.ok()) return given;
    GiveBack(request, given.taken.lease);
    return failed;
  }
  TDOCK_RETURN_IF_ERROR(said.status());
  absl::StatusOr<RowsMessage> decoded = NoThrow([&] { return Decode(*said); });
  if (!decoded.ok()) {
    given.received = decoded.status();  // the others have rows, and will ask how this rank fares
    return given;
  }
  TDOCK_RETURN_IF_ERROR(StatusIn(decoded->facts));
  given.outcome = static_cast<Outcome>(NumberIn(decoded->facts, kOutcome));
  given.taken = {.lease = static_cast<LeaseId>(NumberIn(decoded->facts, kLease)), .rows = std::move(decoded->rows)};
  return given;
}

absl::StatusOr<std::string> Replica::ComputeAndPut(const Given& given, const Work& work) {
  const absl::Status mine = given.received.ok() ? NoThrow([&] { return work.compute(given.taken); }) : given.received;
  TDOCK_RETURN_IF_ERROR(Agree(mine));
  Buffer message;
  if (puts()) {
    const absl::StatusOr<std::string> said = NoThrow([&] { return work.put(given.taken); });
    TDOCK_ASSIGN_OR_RETURN(message, Encode({.facts = said.ok() ? Meta{{kText, *said}} : FactsOf(Name(said.status()))}));
  }
  TDOCK_ASSIGN_OR_RETURN(const Buffer said, options_.group.Broadcast(std::move(message), putter_, Deadline()));
  TDOCK_ASSIGN_OR_RETURN(const RowsMessage decoded, Decode(said));
  TDOCK_RETURN_IF_ERROR(StatusIn(decoded.facts));
  return TextIn(decoded.facts, kText);
}

absl::StatusOr<Replica::Round> Replica::Run(TakeRequest request, const Work& work) {
  if (request.rows.empty()) request.rank = static_cast<int32_t>(options_.at.dp);
  TDOCK_ASSIGN_OR_RETURN(const Given given, TakeTogether(request));
  if (given.outcome != Outcome::kDone) return Round{.outcome = given.outcome};
  absl::StatusOr<std::string> said = ComputeAndPut(given, work);
  if (!said.ok()) {
    // Of the two, either may be the one that the group lost. Whatever the other still puts late is refused.
    if (asks() || puts()) GiveBack(request, given.taken.lease);
    return said.status();
  }
  return Round{.said = *std::move(said)};
}

void Replica::GiveBack(const TakeRequest& request, LeaseId lease) {
  if (lease == kNoLease) return;
  // The error that led here counts; a lease that the other rank has given back is not there.
  options_.dock.Release({.partition = request.partition, .lease = lease}).IgnoreError();
}

absl::StatusOr<bool> Replica::AllConsumed(absl::string_view partition, absl::string_view consumer) {
  int64_t open = 0;
  TDOCK_RETURN_IF_ERROR(OnLeader([&]() -> absl::Status {
    TDOCK_ASSIGN_OR_RETURN(const ConsumerStatus status, options_.dock.GetConsumerStatus(partition, consumer));
    open = status.waiting + status.ready + status.leased + status.quarantined > 0 ? 1 : 0;
    return absl::OkStatus();
  }));
  TDOCK_ASSIGN_OR_RETURN(const int64_t any, options_.group.AllReduceMax(open, Deadline()));
  return any == 0;
}

absl::Status Replica::OnLeader(const std::function<absl::Status()>& body) {
  return Agree(asks() ? NoThrow(body) : absl::OkStatus());
}

absl::StatusOr<ContextPart> Replica::PartOf(int64_t length, ContextSlicing slicing) const {
  if (length < 0 || length > int64_t{1} << 61) {
    return absl::InvalidArgumentError(absl::StrCat("a sequence of ", length, " tokens; 0 to 2^61 are possible"));
  }
  TDOCK_ASSIGN_OR_RETURN(const int64_t multiple, SequenceMultiple(options_.sizes, slicing));
  ContextPart part{.padded_length = (length + multiple - 1) / multiple * multiple};
  TDOCK_ASSIGN_OR_RETURN(part.ranges, ContextSlices(part.padded_length, options_.at.cp, options_.sizes.cp, slicing));
  return part;
}

}  // namespace tdock::runtime
