// The dock: a table of samples that stages of post-training fill column by column and take rows from.
//
// A partition is a table. Its rows are samples, its columns are fields. A consumer is a stage: it says which columns it
// reads and writes, and the dock hands it each row once, when all that it reads is there. For each consumer,
//
//             every column it reads is there        Take                 Put with the lease, Complete
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
//   NotFound            no such partition, column, consumer, row or lease; rows go when they are cleared or released
//   AlreadyExists       a cell that is ready, a partition or a consumer that exists otherwise
//   FailedPrecondition  the state does not allow it: a sealed partition, a lease that is over, an incomplete group
//   DeadlineExceeded    what was waited for did not come; the message names what is missing and who holds it. Retry.
//   ResourceExhausted   it is above the partition's budget by itself, or there is no memory
//   Cancelled           the wait was cancelled
//   OutOfRange          nothing can come any more: the partition is sealed and every row is done for this consumer
//
// A call that fails changes nothing, but for a take: rows that it found to be too old are sent back or dropped, also
// where it then gets none.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tdock/options.h"
#include "tdock/partition_handle.h"
#include "tdock/requests.h"

namespace tdock {

// Thread-safe. Only Take, Fetch and puts of new rows wait, and only until their deadline; a call never waits for
// another's copying of data.
class Dock {
 public:
  virtual ~Dock() = default;

  // A partition that exists with equal options is left as it is; with others it is AlreadyExists, naming the
  // difference.
  virtual absl::Status CreatePartition(const PartitionOptions& options) = 0;
  // Removes a partition and all that belongs to it. Calls that wait on it fail with NotFound; views live on.
  virtual absl::Status DropPartition(absl::string_view partition) = 0;
  // Sorted.
  virtual absl::StatusOr<std::vector<std::string>> ListPartitions() = 0;
  // The calls below for one partition, without its name. Asks the dock nothing: there need not be such a partition yet.
  PartitionHandle partition(std::string name);

  // Registering again is as for partitions. A consumer registered late sees the rows that are there.
  virtual absl::Status RegisterConsumer(absl::string_view partition, const ConsumerOptions& options) = 0;
  // Forgets a consumer, with its leases and what it has done. Rows need not outlive it any more, registered or not;
  // when no other name is left in retain_for, rows live until they are cleared. Cells that it wrote stay, also when
  // what they were made from is sent back later: clear them, or keep the consumer.
  virtual absl::Status DropConsumer(absl::string_view partition, absl::string_view consumer) = 0;

  // All or nothing. Copies the data. Without a lease anybody may fill empty cells, sealed or not; a sealed partition
  // takes no new rows.
  virtual absl::StatusOr<PutResult> Put(const PutRequest& request) = 0;

  // Returns once `min` can be had, with as many as can be had up to `max`. In a sealed partition `min` sinks to what
  // can still come. Costs the same whatever the size of the table.
  virtual absl::StatusOr<Taken> Take(const TakeRequest& request) = 0;

  // Waits until the cells are ready and returns them, in the order of the request.
  virtual absl::StatusOr<Rows> Fetch(const FetchRequest& request) = 0;

  // Makes rows of a lease done, without a put, or gives them back: they are ready again, in their old place.
  virtual absl::Status Complete(const LeaseRequest& request) = 0;
  virtual absl::Status Release(const LeaseRequest& request) = 0;
  // Lets a lease last from now as long as a new one would, and returns when it ends.
  virtual absl::StatusOr<absl::Time> Renew(absl::string_view partition, LeaseId lease) = 0;

  // Makes rows done for all consumers, those that are registered later included, whatever their state; a row that must
  // outlive consumers is released. Leases lose them. Without a lease the request names the rows. The other rows of
  // their groups are not handed out to consumers of groups any more.
  virtual absl::Status Drop(const LeaseRequest& request) = 0;
  // Makes quarantined rows ready again, as if they had never been handed out. FailedPrecondition for a row that is not
  // quarantined.
  virtual absl::Status Requeue(const RequeueRequest& request) = 0;

  // What a checkpointed consumer completed under steps up to this one is done for good. Committing less than before
  // changes nothing.
  virtual absl::Status Commit(const StepRequest& request) = 0;
  // Ends the consumer's leases, and makes ready again what it completed under later steps: to be called when it goes
  // back to what it saved after this step. With a weights version, cells that later weights had a part in are sent
  // back, and this version is the published one. FailedPrecondition if a later step is committed, or if nobody writes a
  // column that would be sent back.
  virtual absl::Status Rollback(const StepRequest& request) = 0;

  // Says that weights of this version make cells from now on. Versions rise: FailedPrecondition for one that is lower
  // than the published one (but see Rollback).
  virtual absl::Status PublishWeights(absl::string_view partition, int64_t version) = 0;

  // The rows of these keys, in their order. NotFound names a key that no row has.
  virtual absl::StatusOr<std::vector<RowId>> FindRows(absl::string_view partition,
                                                      std::span<const std::string> keys) = 0;
  // What rows there are, page by page.
  virtual absl::StatusOr<ListResult> List(const ListRequest& request) = 0;

  // No new rows from now on; cells of those that are there may still be put. FailedPrecondition if a group is
  // incomplete.
  virtual absl::Status Seal(absl::string_view partition) = 0;

  // Removes rows, whatever their state, and returns how many. Leases lose them, views live on.
  virtual absl::StatusOr<int64_t> Clear(const ClearRequest& request) = 0;

  // Counters; they cost the same whatever the size of the table.
  virtual absl::StatusOr<PartitionStatus> GetStatus(absl::string_view partition) = 0;
  virtual absl::StatusOr<ConsumerStatus> GetConsumerStatus(absl::string_view partition, absl::string_view consumer) = 0;
  // Everything about one row: which cells it has and who put them, and how it stands with each consumer. Costs the
  // columns and the consumers, whatever the size of the table.
  virtual absl::StatusOr<RowStatus> GetRowStatus(absl::string_view partition, RowId row) = 0;

  // What keeps this consumer from having more: which columns of which rows are missing, who writes them, who holds them
  // and since when; for people to read.
  virtual absl::StatusOr<std::string> Explain(absl::string_view partition, absl::string_view consumer) = 0;
};

}  // namespace tdock
