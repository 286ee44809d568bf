#include "dock/service/wire/remote_dock.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "dock/service/wire/distinct_rows.h"
#include "dock/service/wire/field_codec.h"
#include "dock/service/wire/messages.h"
#include "dock/service/wire/rows_codec.h"
#include "tdock/verbs.h"

namespace tdock::service {
namespace {

// Tells the server when rows that it handed out are no longer used.
class Pin {
 public:
  Pin(std::shared_ptr<ClientSession> session, uint64_t call) : session_(std::move(session)), call_(call) {}
  ~Pin() { session_->Unpin(call_); }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

 private:
  const std::shared_ptr<ClientSession> session_;
  const uint64_t call_;
};

// `most`: the rows of the put.
absl::StatusOr<PutResult> RowsOfPut(message::PutResult put, uint64_t most) {
  PutResult result{.rows = std::move(put.rows)};
  if (put.count > most) {
    return absl::DataLossError(absl::StrCat("the server's response has ", put.count, " rows; the put has ", most));
  }
  for (uint64_t i = 0; i < put.count; ++i) result.rows.push_back(put.first + i);
  return result;
}

// The body of this type; an empty one if the server sent another.
template <class T>
T BodyIn(message::Reply& reply) {
  T* const body = std::get_if<T>(&reply.body);
  return body == nullptr ? T() : std::move(*body);
}

absl::Status Invalid(const absl::Status& why) {
  return absl::DataLossError(absl::StrCat("the server's response is invalid: ", why.message()));
}

template <class T>
absl::StatusOr<T> ReplyIn(message::Reply& reply, absl::Time now) {
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return BodyIn<message::Names>(reply).names;
  } else if constexpr (std::is_same_v<T, std::vector<RowId>>) {
    return BodyIn<message::RowIds>(reply).rows;
  } else if constexpr (std::is_same_v<T, absl::Time>) {
    return now + DurationFromWire(BodyIn<message::Remaining>(reply).remaining);
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return BodyIn<int64_t>(reply);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return BodyIn<message::Encoded>(reply).bytes;
  } else {
    absl::StatusOr<T> status = Decode<T>(BodyIn<message::Encoded>(reply).bytes, now);
    return status.ok() ? std::move(status) : Invalid(status.status());
  }
}

class RemoteDock final : public Dock {
 public:
  RemoteDock(std::shared_ptr<ClientSession> session, Clock& clock) : session_(std::move(session)), clock_(clock) {}

  void Start(const AnyCall& call) override {
    VisitVerb(call.verb(), [&]<class V>() { call.template Reply<V>(Send(V(), call.template request<V>())); });
  }

 private:
  absl::StatusOr<PutResult> Send(verbs::Put, const PutRequest& put) {
    const absl::Time now = clock_.Now();
    message::Request request = RequestOf<verbs::Put>(put, now);
    AppendNumber(request.body, kReadsRange, 1);
    TDOCK_ASSIGN_OR_RETURN(ClientAnswer answer, session_->Call(std::move(request), put.batch,
                                                               {.wait = put.deadline - now, .cancel = put.cancel}));
    const int64_t most = std::max(put.batch.rows(), put.new_rows);
    return RowsOfPut(BodyIn<message::PutResult>(answer.reply), static_cast<uint64_t>(most));
  }
  absl::StatusOr<Taken> Send(verbs::Take, const TakeRequest& take) {
    const absl::Time now = clock_.Now();
    TDOCK_ASSIGN_OR_RETURN(ClientAnswer answer,
                           session_->Call(RequestOf<verbs::Take>(take, now), Batch(),
                                          {.wait = take.deadline - now, .cancel = take.cancel, .repeatable = true}));
    message::Taken sent = BodyIn<message::Taken>(answer.reply);
    Taken taken{.lease = sent.lease, .expires = clock_.Now() + DurationFromWire(sent.remaining)};
    TDOCK_ASSIGN_OR_RETURN(taken.rows, Rebuild(std::move(sent.rows), std::move(answer.cells)));
    return taken;
  }
  absl::StatusOr<Rows> Send(verbs::Fetch, const FetchRequest& fetch) {
    const absl::Time now = clock_.Now();
    message::Request request;
    const std::optional<DistinctRows> distinct = FindRepeated(fetch);
    if (distinct.has_value()) {
      request = RequestOf<verbs::Fetch>(
          {.partition = fetch.partition, .rows = distinct->rows, .columns = fetch.columns, .deadline = fetch.deadline},
          now);
    } else {
      request = RequestOf<verbs::Fetch>(fetch, now);
    }
    TDOCK_ASSIGN_OR_RETURN(ClientAnswer answer,
                           session_->Call(std::move(request), Batch(),
                                          {.wait = fetch.deadline - now, .cancel = fetch.cancel, .repeatable = true}));
    TDOCK_ASSIGN_OR_RETURN(Rows rows, Rebuild(BodyIn<message::Rows>(answer.reply), std::move(answer.cells)));
    if (!distinct.has_value()) return rows;
    if (rows.size() == distinct->rows.size()) return RowsAt(rows, distinct->positions);
    return absl::DataLossError(
        absl::StrCat("the server's response has ", rows.size(), " rows; ", distinct->rows.size(), " were fetched"));
  }

  absl::StatusOr<ExportedPartition> Send(verbs::ExportPartition, const PartitionRequest& asked) {
    TDOCK_ASSIGN_OR_RETURN(ClientAnswer answer,
                           session_->Call(RequestOf<verbs::ExportPartition>(asked), Batch(), {.repeatable = true}));
    TDOCK_ASSIGN_OR_RETURN(const Rows rows, Rebuild(BodyIn<message::Rows>(answer.reply), std::move(answer.cells)));
    if (rows.size() != 1 || rows.columns().size() != 1) {
      return absl::DataLossError("the server's response is invalid: an image is one cell");
    }
    const std::span<const std::byte> bytes = rows.cell(0, 0).bytes;
    return ExportedPartition{std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
  }

  // A verb that never waits.
  template <class V>
  ResultOf<V> Send(V, const typename V::Request& asked) {
    const Batch* const frame = BatchOf(asked);
    const Batch none, &sent = frame == nullptr ? none : *frame;
    TDOCK_ASSIGN_OR_RETURN(ClientAnswer answer,
                           session_->Call(RequestOf<V>(asked), sent, {.repeatable = V::kRepeatable}));
    if constexpr (std::is_same_v<typename V::Reply, Nothing>) {
      return absl::OkStatus();
    } else {
      return ReplyIn<typename V::Reply>(answer.reply, clock_.Now());
    }
  }

  absl::StatusOr<Rows> Rebuild(message::Rows sent, CellBytes cells) {
    if (sent.pin != 0) cells.pins.push_back(std::make_shared<Pin>(session_, sent.pin));
    absl::StatusOr<Rows> rows = Decode(std::move(sent), std::move(cells));
    return rows.ok() ? std::move(rows) : Invalid(rows.status());
  }

  const std::shared_ptr<ClientSession> session_;
  Clock& clock_;
};

}  // namespace

std::unique_ptr<Dock> MakeRemoteDock(std::shared_ptr<ClientSession> session, Clock& clock) {
  return std::make_unique<RemoteDock>(std::move(session), clock);
}

}  // namespace tdock::service
