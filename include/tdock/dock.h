// The dock: a table of samples, which the stages of post-training fill column by column and take rows from.
//
// A partition is a table. Its rows are samples, its columns are fields. A consumer is a stage: it says which columns it
// reads and writes, and the dock hands it each row once, when every column that it reads is ready. For each consumer,
//
//             every column it reads is there        Take                Fill with the lease, Complete
//   waiting ────────────────────────────────► ready ────────► leased ──────────────────────────────► done ◄── Drop
//                                             ▲ ▲                │ │
//                                             │ └────────────────┘ │ the lease expired for
//                                             │   Release, or the  │ the max_deliveries-th time
//                                             │   lease expired    ▼
//                                             └─────────────── quarantined
//                                                  Requeue
//
// Errors, for every call:
//
//   InvalidArgument     the request is wrong, or does not fit the schema; the message says what would be right
//   NotFound            no such partition, column, consumer, row or lease; a row is gone once it is cleared or released
//   AlreadyExists       the cell is ready already; a partition or consumer of that name has other options
//   FailedPrecondition  the state does not allow it: a sealed partition, an expired lease, an incomplete group
//   DeadlineExceeded    what was waited for did not come; the message names what is missing and who holds it. Retry.
//   ResourceExhausted   the request alone exceeds the partition's budget, or memory is exhausted
//   Cancelled           the wait was cancelled
//   OutOfRange          no more rows can come: the partition is sealed and every row is done for this consumer
//
// A call that fails changes nothing, with one exception: a take sends back or drops the rows that it found too old,
// even if it then returns none.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tdock/options.h"
#include "tdock/requests.h"

namespace tdock {

class AnyCall;
class PartitionHandle;

// Thread-safe. Only Take, Fetch and Put wait, and only until their deadline; a call never waits while another one
// copies data.
class Dock {
 public:
  virtual ~Dock() = default;

  // Starts any of the calls below that are verbs (verbs.h). It is answered once, on any thread: before this returns, if
  // the call blocks; otherwise at any time. Waiting ends with the request's deadline, or its `cancel`. A dock in
  // another process always waits here.
  virtual void Start(const AnyCall& call) = 0;

  // If the partition exists with equal options, does nothing; with different ones: AlreadyExists, naming the
  // difference.
  absl::Status CreatePartition(const PartitionOptions& options);
  // Removes a partition and everything in it. Calls that wait on it fail with NotFound; views stay valid.
  absl::Status DropPartition(absl::string_view partition);
  // Everything that a partition is, as bytes (docs/partition-image.md): its options, consumers, rows, cells and what is
  // done, at one moment, whatever other calls are doing. Costs what all of its cells do; others wait for as long as
  // their states, but not their bytes, are gone through.
  absl::StatusOr<std::string> ExportPartition(absl::string_view partition);
  // Makes that partition, which from then on does what the exported one would have done, with one exception: nobody
  // holds a lease. Rows that were leased are ready again, in their old place, and the old leases are over. All or
  // nothing. AlreadyExists for a partition that is there, with whatever options; FailedPrecondition for an image of
  // another version; InvalidArgument, or DataLoss, for bytes that are no image, or a damaged one. Custom samplers have
  // no state here: the dock must have been given those that consumers name.
  absl::Status ImportPartition(absl::string_view image);
  // Sorted.
  absl::StatusOr<std::vector<std::string>> ListPartitions();
  // The calls below for one partition, without its name. Asks the dock nothing: there need not be such a partition yet.
  PartitionHandle partition(std::string name);

  // Registering again works as for partitions. A consumer that registers late sees the rows that exist by then.
  absl::Status RegisterConsumer(absl::string_view partition, const ConsumerOptions& options);
  // Removes a consumer, its leases and its record of completed rows. Rows are no longer retained for it, registered or
  // not; once no other name is left in retain_for, rows stay until they are cleared. Cells that it wrote stay, even if
  // the cells that they were computed from are sent back later: clear them, or keep the consumer.
  absl::Status DropConsumer(absl::string_view partition, absl::string_view consumer);

  // Adds rows. All or nothing. Copies the data. A sealed partition accepts no new rows.
  absl::StatusOr<PutResult> Put(const PutRequest& request);
  // Puts cells and tags of rows that exist, in a sealed partition too. All or nothing. Copies the data. Without a
  // lease, any client may fill empty cells.
  absl::Status Fill(const FillRequest& request);

  // Returns as soon as `min` are takeable, with as many as are, up to `max`. In a sealed partition `min` is lowered to
  // the number that can still come. The cost does not depend on the size of the table.
  absl::StatusOr<Taken> Take(const TakeRequest& request);

  // Waits until the cells are ready and returns them, in the order of the request.
  absl::StatusOr<Rows> Fetch(const FetchRequest& request);

  // Complete makes rows of a lease done without a put. Release gives them back: they are ready again, in their old
  // place.
  absl::Status Complete(const LeaseRequest& request);
  absl::Status Release(const LeaseRequest& request);
  // Extends a lease to the full duration from now, and returns when it expires.
  absl::StatusOr<absl::Time> Renew(absl::string_view partition, LeaseId lease);

  // Makes rows done for all consumers, including those that register later, whatever their state; rows retained for
  // consumers are released. They leave their leases. Without a lease the request names the rows. The other rows of
  // their groups are no longer handed out to consumers of groups.
  absl::Status Drop(const LeaseRequest& request);
  // Makes quarantined rows ready again, as if they had never been handed out. FailedPrecondition for a row that is not
  // quarantined.
  absl::Status Requeue(const RequeueRequest& request);

  // Makes what a checkpointed consumer completed under steps up to this one final. Committing an earlier step again
  // changes nothing.
  absl::Status Commit(const StepRequest& request);
  // Ends the consumer's leases, and makes the rows that it completed under later steps ready again: for a consumer that
  // restores the checkpoint it saved after this step. With a weights version, cells made in part by later weights are
  // sent back, and this becomes the published version. FailedPrecondition if a later step is committed, or if no
  // consumer writes a column that would be sent back.
  absl::Status Rollback(const StepRequest& request);

  // Announces that cells are made by weights of this version from now on. Versions never decrease: FailedPrecondition
  // for one lower than the published version (but see Rollback).
  absl::Status PublishWeights(absl::string_view partition, int64_t version);

  // The rows with these keys, in the order of the keys. NotFound names a key that no row has.
  absl::StatusOr<std::vector<RowId>> FindRows(absl::string_view partition, std::span<const std::string> keys);
  // The rows, page by page.
  absl::StatusOr<ListResult> List(const ListRequest& request);

  // Accepts no new rows from now on; cells of existing rows may still be put. FailedPrecondition if a group is
  // incomplete.
  absl::Status Seal(absl::string_view partition);

  // Removes rows, whatever their state, and returns how many. They leave their leases; views stay valid.
  absl::StatusOr<int64_t> Clear(const ClearRequest& request);

  // Counters; the cost does not depend on the size of the table.
  absl::StatusOr<PartitionStatus> GetStatus(absl::string_view partition);
  absl::StatusOr<ConsumerStatus> GetConsumerStatus(absl::string_view partition, absl::string_view consumer);
  // Everything about one row: which cells it has and which consumer put them, and its state for each consumer. The cost
  // grows with the columns and consumers, not with the size of the table.
  absl::StatusOr<RowStatus> GetRowStatus(absl::string_view partition, RowId row);

  // Why this consumer cannot take more rows: which columns of which rows are missing, which consumers write them, and
  // which lease holds them since when. For people to read.
  absl::StatusOr<std::string> Explain(absl::string_view partition, absl::string_view consumer);
};

// The calls of a dock for one partition, without its name:
//
//   PartitionHandle train = dock->partition("train");
//   absl::StatusOr<Taken> taken = train.Take({.consumer = "reward", .min = 8, .max = 64});
//
// Requests need not name the partition; one that names another is InvalidArgument. Holds nothing but the name and the
// dock, which must outlive it: it may be made before the partition is. Cheap to copy; thread-safe.
class PartitionHandle {
 public:
  PartitionHandle(Dock& dock, std::string name) : dock_(&dock), name_(std::move(name)) {}

  const std::string& name() const { return name_; }

  absl::Status RegisterConsumer(const ConsumerOptions& options) const;
  absl::Status DropConsumer(absl::string_view consumer) const;
  absl::StatusOr<PutResult> Put(PutRequest request) const;
  absl::Status Fill(FillRequest request) const;
  absl::StatusOr<Taken> Take(TakeRequest request) const;
  absl::StatusOr<Rows> Fetch(FetchRequest request) const;
  absl::Status Complete(LeaseRequest request) const;
  absl::Status Release(LeaseRequest request) const;
  absl::StatusOr<absl::Time> Renew(LeaseId lease) const;
  absl::Status Drop(LeaseRequest request) const;
  absl::Status Requeue(RequeueRequest request) const;
  absl::Status Commit(StepRequest request) const;
  absl::Status Rollback(StepRequest request) const;
  absl::Status PublishWeights(int64_t version) const;
  absl::StatusOr<std::vector<RowId>> FindRows(std::span<const std::string> keys) const;
  absl::StatusOr<ListResult> List(ListRequest request) const;
  absl::Status Seal() const;
  absl::StatusOr<int64_t> Clear(ClearRequest request) const;
  absl::StatusOr<PartitionStatus> GetStatus() const;
  absl::StatusOr<ConsumerStatus> GetConsumerStatus(absl::string_view consumer) const;
  absl::StatusOr<RowStatus> GetRowStatus(RowId row) const;
  absl::StatusOr<std::string> Explain(absl::string_view consumer) const;

 private:
  template <class V>
  auto Do(typename V::Request request) const;

  Dock* dock_;
  std::string name_;
};

}  // namespace tdock
