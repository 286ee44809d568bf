#include "wire/remote_dock.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "wire/fields.h"
#include "wire/request_codec.h"
#include "wire/rows_codec.h"
#include "wire/status_codec.h"

namespace tdock {
namespace {

using Wait = ClientSession::Wait;

// Calls that may happen twice, and those that may not.
const Wait kRepeatable{.repeatable = true};
const Wait kOnce{};

// Tells the server when nobody looks at what it handed out any more.
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

class RemoteDock final : public Dock {
 public:
  RemoteDock(std::shared_ptr<ClientSession> session, Clock& clock) : session_(std::move(session)), clock_(clock) {}

  absl::Status CreatePartition(const PartitionOptions& options) override {
    v1::Request request;
    Encode(options, request.mutable_create_partition());
    return Do(std::move(request), kRepeatable);
  }
  absl::Status DropPartition(absl::string_view partition) override {
    v1::Request request;
    request.mutable_drop_partition()->set_partition(std::string(partition));
    return Do(std::move(request), kOnce);
  }
  absl::StatusOr<std::vector<std::string>> ListPartitions() override {
    v1::Request request;
    request.mutable_list_partitions();
    TDOCK_ASSIGN_OR_RETURN(const v1::Reply reply, Ask(std::move(request), kRepeatable));
    return Strings(reply.names().names());
  }
  absl::Status RegisterConsumer(absl::string_view partition, const ConsumerOptions& options) override {
    v1::Request request;
    Encode(partition, options, request.mutable_register_consumer());
    return Do(std::move(request), kRepeatable);
  }
  absl::Status DropConsumer(absl::string_view partition, absl::string_view consumer) override {
    v1::Request request;
    Name(partition, consumer, request.mutable_drop_consumer());
    return Do(std::move(request), kOnce);
  }

  absl::StatusOr<PutResult> Put(const PutRequest& put) override {
    const absl::Time now = clock_.Now();
    v1::Request request;
    Encode(put, now, request.mutable_put());
    TDOCK_ASSIGN_OR_RETURN(
        const ClientAnswer answer,
        session_->Call(std::move(request), put.batch, {.wait = put.deadline - now, .cancel = put.cancel}));
    return PutResult{.rows = Numbers<RowId>(answer.reply.put().rows())};
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
    TDOCK_ASSIGN_OR_RETURN(ClientAnswer answer,
                           session_->Call(std::move(request), Batch(),
                                          {.wait = fetch.deadline - now, .cancel = fetch.cancel, .repeatable = true}));
    return Rebuild(answer.reply.rows(), std::move(answer.cells));
  }

  absl::Status Complete(const LeaseRequest& lease) override {
    v1::Request request;
    Encode(lease, request.mutable_complete());
    return Do(std::move(request), kOnce);
  }
  absl::Status Release(const LeaseRequest& lease) override {
    v1::Request request;
    Encode(lease, request.mutable_release());
    return Do(std::move(request), kOnce);
  }
  absl::StatusOr<absl::Time> Renew(absl::string_view partition, LeaseId lease) override {
    v1::Request request;
    Encode(LeaseRequest{.partition = std::string(partition), .lease = lease}, request.mutable_renew());
    TDOCK_ASSIGN_OR_RETURN(const v1::Reply reply, Ask(std::move(request), kRepeatable));
    return clock_.Now() + DurationFromWire(reply.expires().remaining());
  }
  absl::Status Drop(const LeaseRequest& lease) override {
    v1::Request request;
    Encode(lease, request.mutable_drop());
    return Do(std::move(request), kOnce);
  }
  absl::Status Requeue(const RequeueRequest& requeue) override {
    v1::Request request;
    Encode(requeue, request.mutable_requeue());
    return Do(std::move(request), kOnce);
  }
  absl::Status Commit(const StepRequest& step) override {
    v1::Request request;
    Encode(step, request.mutable_commit());
    return Do(std::move(request), kRepeatable);
  }
  absl::Status Rollback(const StepRequest& step) override {
    v1::Request request;
    Encode(step, request.mutable_rollback());
    return Do(std::move(request), kOnce);
  }
  absl::Status PublishWeights(absl::string_view partition, int64_t version) override {
    v1::Request request;
    request.mutable_publish_weights()->set_partition(std::string(partition));
    request.mutable_publish_weights()->set_version(version);
    return Do(std::move(request), kRepeatable);
  }
  absl::StatusOr<std::vector<RowId>> FindRows(absl::string_view partition, std::span<const std::string> keys) override {
    v1::Request request;
    request.mutable_find_rows()->set_partition(std::string(partition));
    for (const std::string& key : keys) request.mutable_find_rows()->add_keys(key);
    TDOCK_ASSIGN_OR_RETURN(const v1::Reply reply, Ask(std::move(request), kRepeatable));
    return Numbers<RowId>(reply.row_ids().rows());
  }
  absl::StatusOr<ListResult> List(const ListRequest& list) override {
    v1::Request request;
    Encode(list, request.mutable_list());
    TDOCK_ASSIGN_OR_RETURN(const v1::Reply reply, Ask(std::move(request), kRepeatable));
    return Decode(reply.list());
  }
  absl::Status Seal(absl::string_view partition) override {
    v1::Request request;
    request.mutable_seal()->set_partition(std::string(partition));
    return Do(std::move(request), kRepeatable);
  }
  absl::StatusOr<int64_t> Clear(const ClearRequest& clear) override {
    v1::Request request;
    Encode(clear, request.mutable_clear());
    TDOCK_ASSIGN_OR_RETURN(const v1::Reply reply, Ask(std::move(request), kOnce));
    return reply.count();
  }
  absl::StatusOr<PartitionStatus> GetStatus(absl::string_view partition) override {
    v1::Request request;
    request.mutable_get_status()->set_partition(std::string(partition));
    TDOCK_ASSIGN_OR_RETURN(const v1::Reply reply, Ask(std::move(request), kRepeatable));
    return Decode(reply.status());
  }
  absl::StatusOr<ConsumerStatus> GetConsumerStatus(absl::string_view partition, absl::string_view consumer) override {
    v1::Request request;
    Name(partition, consumer, request.mutable_get_consumer_status());
    TDOCK_ASSIGN_OR_RETURN(const v1::Reply reply, Ask(std::move(request), kRepeatable));
    return Decode(reply.consumer_status());
  }
  absl::StatusOr<RowStatus> GetRowStatus(absl::string_view partition, RowId row) override {
    v1::Request request;
    request.mutable_get_row_status()->set_partition(std::string(partition));
    request.mutable_get_row_status()->set_row(row);
    TDOCK_ASSIGN_OR_RETURN(const v1::Reply reply, Ask(std::move(request), kRepeatable));
    return Decode(reply.row_status(), clock_.Now());
  }
  absl::StatusOr<std::string> Explain(absl::string_view partition, absl::string_view consumer) override {
    v1::Request request;
    Name(partition, consumer, request.mutable_explain());
    TDOCK_ASSIGN_OR_RETURN(v1::Reply reply, Ask(std::move(request), kRepeatable));
    return std::move(*reply.mutable_text());
  }

 private:
  static void Name(absl::string_view partition, absl::string_view consumer, v1::ConsumerName* name) {
    name->set_partition(std::string(partition));
    name->set_consumer(std::string(consumer));
  }
  absl::StatusOr<v1::Reply> Ask(v1::Request request, const Wait& wait) {
    TDOCK_ASSIGN_OR_RETURN(ClientAnswer answer, session_->Call(std::move(request), Batch(), wait));
    return std::move(answer.reply);
  }
  absl::Status Do(v1::Request request, const Wait& wait) { return Ask(std::move(request), wait).status(); }

  absl::StatusOr<Rows> Rebuild(const v1::Rows& message, CellBytes cells) {
    if (message.pin() != 0) cells.pins.push_back(std::make_shared<Pin>(session_, message.pin()));
    absl::StatusOr<Rows> rows = Decode(message, std::move(cells));
    if (rows.ok()) return rows;
    return absl::DataLossError(absl::StrCat("the server's answer cannot be understood: ", rows.status().message()));
  }

  const std::shared_ptr<ClientSession> session_;
  Clock& clock_;
};

}  // namespace

std::unique_ptr<Dock> MakeRemoteDock(std::shared_ptr<ClientSession> session, Clock& clock) {
  return std::make_unique<RemoteDock>(std::move(session), clock);
}

}  // namespace tdock
