#include "dock/service/wire/remote_dock.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "dock/service/wire/distinct_rows.h"
#include "dock/service/wire/fields.h"
#include "dock/service/wire/request_codec.h"
#include "dock/service/wire/rows_codec.h"
#include "dock/service/wire/status_codec.h"

namespace tdock::service {
namespace {

using Wait = ClientSession::Wait;

// Which calls may be carried out twice.
const Wait kRepeatable{.repeatable = true};
const Wait kOnce{};

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
absl::StatusOr<PutResult> RowsOfPut(const v1::PutResult& message, uint64_t most) {
  PutResult result{.rows = Numbers<RowId>(message.rows())};
  if (message.count() > most) {
    return absl::DataLossError(
        absl::StrCat("the server's response has ", message.count(), " rows; the put has ", most));
  }
  for (uint64_t i = 0; i < message.count(); ++i) result.rows.push_back(message.first() + i);
  return result;
}

class RemoteDock final : public Dock {
 public:
  RemoteDock(std::shared_ptr<ClientSession> session, Clock& clock) : session_(std::move(session)), clock_(clock) {}

  absl::Status CreatePartition(const PartitionOptions& options) override {
    return Do(kRepeatable, &v1::Request::mutable_create_partition, options);
  }
  absl::Status DropPartition(absl::string_view partition) override {
    return Do(kOnce, &v1::Request::mutable_drop_partition, partition);
  }
  absl::StatusOr<std::vector<std::string>> ListPartitions() override {
    TDOCK_ASSIGN_OR_RETURN(const v1::Reply reply, Ask(kRepeatable, &v1::Request::mutable_list_partitions));
    return Strings(reply.names().names());
  }
  absl::Status RegisterConsumer(absl::string_view partition, const ConsumerOptions& options) override {
    return Do(kRepeatable, &v1::Request::mutable_register_consumer, partition, options);
  }
  absl::Status DropConsumer(absl::string_view partition, absl::string_view consumer) override {
    return Do(kOnce, &v1::Request::mutable_drop_consumer, partition, consumer);
  }

  absl::StatusOr<PutResult> Put(const PutRequest& put) override {
    const absl::Time now = clock_.Now();
    v1::Request request;
    Encode(put, now, request.mutable_put());
    request.mutable_put()->set_reads_range(true);
    TDOCK_ASSIGN_OR_RETURN(
        const ClientAnswer answer,
        session_->Call(std::move(request), put.batch, {.wait = put.deadline - now, .cancel = put.cancel}));
    const int64_t most = std::max({put.batch.rows(), put.new_rows, static_cast<int64_t>(put.rows.size())});
    return RowsOfPut(answer.reply.put(), static_cast<uint64_t>(most));
  }
  absl::StatusOr<Taken> Take(const TakeRequest& take) override {
    const absl::Time now = clock_.Now();
    v1::Request request;
    Encode(take, now, request.mutable_take());
    TDOCK_ASSIGN_OR_RETURN(ClientAnswer answer,
                           session_->Call(std::move(request), Batch(),
                                          {.wait = take.deadline - now, .cancel = take.cancel, .repeatable = true}));
    const v1::Taken& message = answer.reply.taken();
    Taken taken{.lease = message.lease(), .expires = clock_.Now() + DurationFromWire(message.remaining())};
    TDOCK_ASSIGN_OR_RETURN(taken.rows, Rebuild(message.rows(), std::move(answer.cells)));
    return taken;
  }
  absl::StatusOr<Rows> Fetch(const FetchRequest& fetch) override {
    const absl::Time now = clock_.Now();
    v1::Request request;
    Encode(fetch, now, request.mutable_fetch());
    const std::optional<DistinctRows> distinct = FindRepeated(fetch);
    if (distinct.has_value()) {
      request.mutable_fetch()->clear_rows();
      Append(distinct->rows, request.mutable_fetch()->mutable_rows());
    }
    TDOCK_ASSIGN_OR_RETURN(ClientAnswer answer,
                           session_->Call(std::move(request), Batch(),
                                          {.wait = fetch.deadline - now, .cancel = fetch.cancel, .repeatable = true}));
    TDOCK_ASSIGN_OR_RETURN(Rows rows, Rebuild(answer.reply.rows(), std::move(answer.cells)));
    if (!distinct.has_value()) return rows;
    if (rows.size() == distinct->rows.size()) return RowsAt(rows, distinct->positions);
    return absl::DataLossError(
        absl::StrCat("the server's response has ", rows.size(), " rows; ", distinct->rows.size(), " were fetched"));
  }

  absl::Status Complete(const LeaseRequest& lease) override { return Do(kOnce, &v1::Request::mutable_complete, lease); }
  absl::Status Release(const LeaseRequest& lease) override { return Do(kOnce, &v1::Request::mutable_release, lease); }
  absl::StatusOr<absl::Time> Renew(absl::string_view partition, LeaseId lease) override {
    const LeaseRequest renew{.partition = std::string(partition), .lease = lease};
    TDOCK_ASSIGN_OR_RETURN(const v1::Reply reply, Ask(kRepeatable, &v1::Request::mutable_renew, renew));
    return clock_.Now() + DurationFromWire(reply.expires().remaining());
  }
  absl::Status Drop(const LeaseRequest& lease) override { return Do(kOnce, &v1::Request::mutable_drop, lease); }
  absl::Status Requeue(const RequeueRequest& requeue) override {
    return Do(kOnce, &v1::Request::mutable_requeue, requeue);
  }
  absl::Status Commit(const StepRequest& step) override { return Do(kRepeatable, &v1::Request::mutable_commit, step); }
  absl::Status Rollback(const StepRequest& step) override { return Do(kOnce, &v1::Request::mutable_rollback, step); }
  absl::Status PublishWeights(absl::string_view partition, int64_t version) override {
    return Do(kRepeatable, &v1::Request::mutable_publish_weights, partition, version);
  }
  absl::StatusOr<std::vector<RowId>> FindRows(absl::string_view partition, std::span<const std::string> keys) override {
    TDOCK_ASSIGN_OR_RETURN(const v1::Reply reply, Ask(kRepeatable, &v1::Request::mutable_find_rows, partition, keys));
    return Numbers<RowId>(reply.row_ids().rows());
  }
  absl::StatusOr<ListResult> List(const ListRequest& list) override {
    TDOCK_ASSIGN_OR_RETURN(const v1::Reply reply, Ask(kRepeatable, &v1::Request::mutable_list, list));
    return Decode(reply.list());
  }
  absl::Status Seal(absl::string_view partition) override {
    return Do(kRepeatable, &v1::Request::mutable_seal, partition);
  }
  absl::StatusOr<int64_t> Clear(const ClearRequest& clear) override {
    TDOCK_ASSIGN_OR_RETURN(const v1::Reply reply, Ask(kOnce, &v1::Request::mutable_clear, clear));
    return reply.count();
  }
  absl::StatusOr<PartitionStatus> GetStatus(absl::string_view partition) override {
    TDOCK_ASSIGN_OR_RETURN(const v1::Reply reply, Ask(kRepeatable, &v1::Request::mutable_get_status, partition));
    return Decode(reply.status());
  }
  absl::StatusOr<ConsumerStatus> GetConsumerStatus(absl::string_view partition, absl::string_view consumer) override {
    TDOCK_ASSIGN_OR_RETURN(const v1::Reply reply,
                           Ask(kRepeatable, &v1::Request::mutable_get_consumer_status, partition, consumer));
    return Decode(reply.consumer_status());
  }
  absl::StatusOr<RowStatus> GetRowStatus(absl::string_view partition, RowId row) override {
    TDOCK_ASSIGN_OR_RETURN(const v1::Reply reply,
                           Ask(kRepeatable, &v1::Request::mutable_get_row_status, partition, row));
    return Decode(reply.row_status(), clock_.Now());
  }
  absl::StatusOr<std::string> Explain(absl::string_view partition, absl::string_view consumer) override {
    TDOCK_ASSIGN_OR_RETURN(v1::Reply reply, Ask(kRepeatable, &v1::Request::mutable_explain, partition, consumer));
    return std::move(*reply.mutable_text());
  }

 private:
  // Makes a call with the request field that Encode() fills from the arguments.
  template <class Message, class... Arguments>
  absl::StatusOr<v1::Reply> Ask(const Wait& wait, Message* (v1::Request::*field)(), const Arguments&... arguments) {
    v1::Request request;
    Encode(arguments..., (request.*field)());
    TDOCK_ASSIGN_OR_RETURN(ClientAnswer answer, session_->Call(std::move(request), Batch(), wait));
    return std::move(answer.reply);
  }
  template <class... Arguments>
  absl::Status Do(const Wait& wait, const Arguments&... arguments) {
    return Ask(wait, arguments...).status();
  }

  absl::StatusOr<Rows> Rebuild(const v1::Rows& message, CellBytes cells) {
    if (message.pin() != 0) cells.pins.push_back(std::make_shared<Pin>(session_, message.pin()));
    absl::StatusOr<Rows> rows = Decode(message, std::move(cells));
    if (rows.ok()) return rows;
    return absl::DataLossError(absl::StrCat("the server's response is invalid: ", rows.status().message()));
  }

  const std::shared_ptr<ClientSession> session_;
  Clock& clock_;
};

}  // namespace

std::unique_ptr<Dock> MakeRemoteDock(std::shared_ptr<ClientSession> session, Clock& clock) {
  return std::make_unique<RemoteDock>(std::move(session), clock);
}

}  // namespace tdock::service
