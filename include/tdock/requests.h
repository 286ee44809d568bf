// The requests and results of a dock.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tdock/batch.h"
#include "tdock/fields.h"
#include "tdock/options.h"
#include "tdock/rows.h"

namespace tdock {

// Names the rows of one Take. Ascending within a partition, never reused.
using LeaseId = uint64_t;
inline constexpr LeaseId kNoLease = 0;

// The steps of a checkpointed consumer, for instance its optimizer steps, are numbered from 0 on.
inline constexpr int64_t kNoStep = -1;

// The requests of calls that name a partition, and at most one thing in it.
struct PartitionRequest {
  std::string partition = {};

  TDOCK_FIELDS(PartitionRequest, partition)
};
struct ConsumerRequest {
  std::string partition = {};
  std::string consumer = {};

  TDOCK_FIELDS(ConsumerRequest, partition, consumer)
};
struct RegisterRequest {
  std::string partition = {};
  ConsumerOptions options = {};

  TDOCK_FIELDS(RegisterRequest, partition, options)
};
struct PublishRequest {
  std::string partition = {};
  int64_t version = 0;

  TDOCK_FIELDS(PublishRequest, partition, version)
};
struct FindRequest {
  std::string partition = {};
  std::vector<std::string> keys = {};

  TDOCK_FIELDS(FindRequest, partition, keys)
};
struct ImportRequest {
  // One column of bytes with one row.
  Batch image = {};

  TDOCK_FIELDS(ImportRequest, image)
};
struct RowRequest {
  std::string partition = {};
  RowId row = 0;

  TDOCK_FIELDS(RowRequest, partition, row)
};

// New rows.
struct PutRequest {
  std::string partition = {};
  // At least one row and one column, except as described at new_rows.
  Batch batch = {};
  // With an empty batch: the number of rows to create without cells.
  int64_t new_rows = 0;
  // The group of each row. Empty: rows without a group, which is possible if the group size is 1.
  std::vector<GroupId> groups = {};
  // The size of the groups that this put starts; 0: the partition's.
  int64_t group_size = 0;
  // The key of each row, unique in the partition; an empty string for a row without one. The rules for names apply.
  std::vector<std::string> keys = {};
  // One for each row, or one for all rows.
  std::vector<Tags> tags = {};
  // The version of the weights that made these cells.
  int64_t weights_version = kNoWeightsVersion;
  // Until when to wait for room, in a partition with a budget. In the past: do not wait.
  absl::Time deadline = absl::InfinitePast();
  std::stop_token cancel = {};

  TDOCK_FIELDS(PutRequest, partition, batch, new_rows, groups, group_size, keys, tags, weights_version, deadline,
               cancel)
};

struct PutResult {
  // The new ids, one for each row.
  std::vector<RowId> rows = {};

  TDOCK_FIELDS(PutResult, rows)
};

// Cells and tags of existing rows.
struct FillRequest {
  std::string partition = {};
  // At least one column, unless there are tags. A row for each of `rows`.
  Batch batch = {};
  // All different.
  std::vector<RowId> rows = {};
  // With a lease, `rows` must belong to it and the columns must be among those that its consumer writes; the rows are
  // then done for that consumer. The lease's other rows stay leased.
  LeaseId lease = kNoLease;
  // Stores under the lease without completing.
  bool keep = false;
  // The step that completes the rows, if the lease is a checkpointed consumer's: above the last that it committed.
  int64_t step = kNoStep;
  // One for each row, or one for all rows. Rows keep their other tags.
  std::vector<Tags> tags = {};
  // The cells are not complete: only consumers that write the column and have it in reads_optional get them, and they
  // make no row ready. They are replaced without `overwrite`, and what replaces them continues them: see Rows::Pieces.
  // Under a lease, the rows are given back instead of completed, and their age grows by one.
  bool partial = false;
  // The epoch of each row when it was handed out, for results that are put without a lease: FailedPrecondition if a row
  // was sent back since. Empty: not checked.
  std::vector<uint32_t> epochs = {};
  // Replaces cells that are ready: views of the old ones stay valid, and rows that are done stay done. Partial cells
  // are replaced by new ones that do not continue them.
  bool overwrite = false;
  // The version of the weights that made these cells.
  int64_t weights_version = kNoWeightsVersion;

  TDOCK_FIELDS(FillRequest, partition, batch, rows, lease, keep, step, tags, partial, epochs, overwrite,
               weights_version)
};

struct TakeRequest {
  std::string partition = {};
  std::string consumer = {};
  // Rows, or groups for a consumer of groups. 1 ≤ min ≤ max.
  int64_t min = 1;
  int64_t max = 1;
  // Below the consumer's `ranks`.
  int32_t rank = 0;
  // Exactly these rows, in this order, whatever the sampler: for consumers of rows. Then min and max are ignored and
  // the take does not wait: FailedPrecondition if a row is not ready.
  std::vector<RowId> rows = {};
  // In the past: do not wait.
  absl::Time deadline = absl::InfinitePast();
  // Ends the wait with Cancelled.
  std::stop_token cancel = {};

  TDOCK_FIELDS(TakeRequest, partition, consumer, min, max, rank, rows, deadline, cancel)
};

struct Taken {
  // kNoLease for an at_most_once consumer.
  LeaseId lease = kNoLease;
  // When the lease expires. Puts under it are refused after that.
  absl::Time expires = absl::InfiniteFuture();
  Rows rows = {};

  TDOCK_FIELDS(Taken, lease, expires, rows)
};

struct FetchRequest {
  std::string partition = {};
  // May name a row several times.
  std::vector<RowId> rows = {};
  std::vector<std::string> columns = {};
  absl::Time deadline = absl::InfinitePast();
  std::stop_token cancel = {};

  TDOCK_FIELDS(FetchRequest, partition, rows, columns, deadline, cancel)
};

struct LeaseRequest {
  std::string partition = {};
  LeaseId lease = kNoLease;
  // Empty: all rows that the lease still holds.
  std::vector<RowId> rows = {};
  // As in FillRequest. For Complete only.
  int64_t step = kNoStep;

  TDOCK_FIELDS(LeaseRequest, partition, lease, rows, step)
};

struct RequeueRequest {
  std::string partition = {};
  std::string consumer = {};
  // Empty: all that are quarantined.
  std::vector<RowId> rows = {};

  TDOCK_FIELDS(RequeueRequest, partition, consumer, rows)
};

struct StepRequest {
  std::string partition = {};
  std::string consumer = {};
  int64_t step = 0;
  // For Rollback only: the version of the weights that is restored. kNoWeightsVersion: cells and the published version
  // stay.
  int64_t weights_version = kNoWeightsVersion;

  TDOCK_FIELDS(StepRequest, partition, consumer, step, weights_version)
};

struct ListRequest {
  std::string partition = {};
  // Only rows that have all of these.
  Tags tags = {};
  // Only rows that are ready for this consumer, unless it is empty.
  std::string ready_for = {};
  // Only rows with these columns ready.
  std::vector<std::string> having = {};
  // Only this row and later ones.
  RowId from = 0;
  int64_t limit = 1000;

  TDOCK_FIELDS(ListRequest, partition, tags, ready_for, having, from, limit)
};

struct ListedRow {
  RowId row = 0;
  GroupId group = kNoGroup;
  std::string key = {};
  Tags tags = {};
  int32_t age = 0;
  uint32_t epoch = 0;

  TDOCK_FIELDS(ListedRow, row, group, key, tags, age, epoch)
};

struct ListResult {
  // Ascending; at most `limit`, or fewer if the dock stops early to let other calls proceed.
  std::vector<ListedRow> rows = {};
  // The `from` of the next page; unset at the end.
  std::optional<RowId> next = {};

  TDOCK_FIELDS(ListResult, rows, next)
};

// What to clear: the rows, the groups, the rows with all of these tags, or everything. Exactly one of them must be
// given: otherwise InvalidArgument.
struct ClearRequest {
  std::string partition = {};
  std::vector<RowId> rows = {};
  std::vector<GroupId> groups = {};
  Tags tags = {};
  // Also unseals.
  bool everything = false;

  TDOCK_FIELDS(ClearRequest, partition, rows, groups, tags, everything)
};

struct ConsumerStatus {
  // Existing rows, by their state for this consumer.
  int64_t waiting = 0;
  int64_t ready = 0;
  int64_t leased = 0;
  int64_t quarantined = 0;
  int64_t done = 0;
  // The done rows that may still be rolled back; and the last step that was committed.
  int64_t uncommitted = 0;
  int64_t committed_step = kNoStep;
  // Rows, or groups for a consumer of groups, that a Take could return now.
  int64_t takeable = 0;
  // Since it was registered: rows that it completed, not counting dropped ones, and rows whose lease expired.
  int64_t completed = 0;
  int64_t expired = 0;
  // Rows that it gave back with partial cells.
  int64_t unfinished = 0;
  // Rows that were too old for it and were sent back or dropped; and rows that it must take again, whether they were
  // leased, done or quarantined, because cells that it read or wrote were sent back.
  int64_t sent_back = 0;
  int64_t stale_dropped = 0;
  int64_t reset = 0;

  TDOCK_FIELDS(ConsumerStatus, waiting, ready, leased, quarantined, done, uncommitted, committed_step, takeable,
               completed, expired, unfinished, sent_back, stale_dropped, reset)
};

struct ColumnStatus {
  std::string name = {};
  // False for a column that a consumer reads but that was never put; then `type` is meaningless.
  bool typed = false;
  ColumnType type = {};
  int64_t ready_cells = 0;

  TDOCK_FIELDS(ColumnStatus, name, typed, type, ready_cells)
};

struct NamedConsumerStatus {
  std::string name = {};
  ConsumerStatus status = {};

  TDOCK_FIELDS(NamedConsumerStatus, name, status)
};

struct PartitionStatus {
  bool sealed = false;
  // The published version.
  int64_t weights_version = kNoWeightsVersion;
  int64_t rows = 0;
  int64_t groups = 0;
  // Groups with missing rows.
  int64_t incomplete_groups = 0;
  // The consumers that rows are retained for.
  std::vector<std::string> retain_for = {};
  // Bytes that the partition's cells occupy, including those that only views hold.
  int64_t held_bytes = 0;
  // In the order in which they were first named.
  std::vector<ColumnStatus> columns = {};
  std::vector<NamedConsumerStatus> consumers = {};

  TDOCK_FIELDS(PartitionStatus, sealed, weights_version, rows, groups, incomplete_groups, retain_for, held_bytes,
               columns, consumers)
};

enum class CellState {
  kEmpty,
  kPartial,  // only consumers that write it get it
  kReady,
};
constexpr std::array<absl::string_view, 3> NamesOf(CellState) { return {"empty", "partial", "ready"}; }
constexpr absl::string_view CellStateName(CellState state) { return NamesOf(state)[static_cast<size_t>(state)]; }

// One column of a row.
struct RowCellStatus {
  std::string column = {};
  CellState state = CellState::kEmpty;
  // Of a ready or partial cell: its size; the version as Rows::WeightsVersion gives it; and the consumer under whose
  // lease it was put, which may have been dropped since. Empty `writer`: it was put without a lease.
  int64_t bytes = 0;
  int64_t weights_version = kNoWeightsVersion;
  std::string writer = {};

  TDOCK_FIELDS(RowCellStatus, column, state, bytes, weights_version, writer)
};

// The states in the diagram of dock.h.
enum class DeliveryState { kWaiting, kReady, kLeased, kQuarantined, kDone };
constexpr std::array<absl::string_view, 5> NamesOf(DeliveryState) {
  return {"waiting", "ready", "leased", "quarantined", "done"};
}
constexpr absl::string_view DeliveryStateName(DeliveryState state) {
  return NamesOf(state)[static_cast<size_t>(state)];
}

// The state of a row for one consumer.
struct RowConsumerStatus {
  std::string consumer = {};
  DeliveryState state = DeliveryState::kWaiting;
  // The columns that it waits for.
  std::vector<std::string> missing = {};
  // As in Rows::redeliveries; of a quarantined row, the consumer's max_deliveries.
  int32_t redeliveries = 0;
  // Of a leased row: its lease, when it was taken, and when the lease expires.
  LeaseId lease = kNoLease;
  absl::Time taken = absl::InfinitePast();
  absl::Time expires = absl::InfiniteFuture();
  // Of a done row that may still be rolled back: the step that completed it.
  int64_t uncommitted_step = kNoStep;

  TDOCK_FIELDS(RowConsumerStatus, consumer, state, missing, redeliveries, lease, taken, expires, uncommitted_step)
};

struct RowStatus {
  RowId row = 0;
  GroupId group = kNoGroup;
  std::string key = {};
  Tags tags = {};
  int32_t age = 0;
  uint32_t epoch = 0;
  // In the order in which the columns were first named, and the consumers registered.
  std::vector<RowCellStatus> cells = {};
  std::vector<RowConsumerStatus> consumers = {};

  TDOCK_FIELDS(RowStatus, row, group, key, tags, age, epoch, cells, consumers)
};

// A partition as bytes (docs/partition-image.md).
struct ExportedPartition {
  std::string bytes = {};

  TDOCK_FIELDS(ExportedPartition, bytes)
};

// The request or the reply of verbs that have none.
struct Nothing {};

// The calls of a dock, each with its request, its reply, its name and number in messages, and whether a client may
// repeat it without knowing whether it was carried out (verbs.h).
#define TDOCK_VERBS(V)                                                                 \
  V(CreatePartition, PartitionOptions, Nothing, create_partition, 10, true)            \
  V(DropPartition, PartitionRequest, Nothing, drop_partition, 11, false)               \
  V(ListPartitions, Nothing, std::vector<std::string>, list_partitions, 12, true)      \
  V(RegisterConsumer, RegisterRequest, Nothing, register_consumer, 13, true)           \
  V(DropConsumer, ConsumerRequest, Nothing, drop_consumer, 14, false)                  \
  V(Put, PutRequest, PutResult, put, 15, false)                                        \
  V(Fill, FillRequest, Nothing, fill, 39, false)                                       \
  V(Take, TakeRequest, Taken, take, 16, true)                                          \
  V(Fetch, FetchRequest, Rows, fetch, 17, true)                                        \
  V(Complete, LeaseRequest, Nothing, complete, 18, false)                              \
  V(Release, LeaseRequest, Nothing, release, 19, false)                                \
  V(Renew, LeaseRequest, absl::Time, renew, 20, true)                                  \
  V(Drop, LeaseRequest, Nothing, drop, 21, false)                                      \
  V(Requeue, RequeueRequest, Nothing, requeue, 22, false)                              \
  V(Commit, StepRequest, Nothing, commit, 23, true)                                    \
  V(Rollback, StepRequest, Nothing, rollback, 24, false)                               \
  V(PublishWeights, PublishRequest, Nothing, publish_weights, 25, true)                \
  V(FindRows, FindRequest, std::vector<RowId>, find_rows, 26, true)                    \
  V(List, ListRequest, ListResult, list, 27, true)                                     \
  V(Seal, PartitionRequest, Nothing, seal, 28, true)                                   \
  V(Clear, ClearRequest, int64_t, clear, 29, false)                                    \
  V(GetStatus, PartitionRequest, PartitionStatus, get_status, 30, true)                \
  V(GetConsumerStatus, ConsumerRequest, ConsumerStatus, get_consumer_status, 31, true) \
  V(Explain, ConsumerRequest, std::string, explain, 32, true)                          \
  V(GetRowStatus, RowRequest, RowStatus, get_row_status, 33, true)                     \
  V(ExportPartition, PartitionRequest, ExportedPartition, export_partition, 37, true)  \
  V(ImportPartition, ImportRequest, Nothing, import_partition, 38, false)

}  // namespace tdock
