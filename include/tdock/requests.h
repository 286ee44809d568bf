// What one asks of a dock, and what it answers.
#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tdock/batch.h"
#include "tdock/rows.h"

namespace tdock {

// Names the rows of one Take. Ascending within a partition, never reused.
using LeaseId = uint64_t;
inline constexpr LeaseId kNoLease = 0;

// Steps of a checkpointed consumer, its optimizer steps for instance, are numbered from 0 on.
inline constexpr int64_t kNoStep = -1;

struct PutRequest {
  std::string partition = {};
  // At least one row, and one column: but see new_rows and tags.
  Batch batch = {};
  // With an empty batch: makes so many rows without cells.
  int64_t new_rows = 0;
  // The rows that the batch fills, one each and no two equal. Empty: new rows.
  std::vector<RowId> rows = {};
  // With a lease, `rows` must be held by it, the columns be among those that its consumer writes, and the rows are done
  // for that consumer afterwards; the lease's other rows stay leased.
  LeaseId lease = kNoLease;
  // Stores under the lease without completing.
  bool keep = false;
  // The step that completes the rows, if the lease is a checkpointed consumer's: above the last that it committed.
  int64_t step = kNoStep;
  // The group of each new row. Empty: rows without a group, where groups have one row.
  std::vector<GroupId> groups = {};
  // The size of the groups that this put starts; 0: the partition's.
  int64_t group_size = 0;
  // The key of each new row, none twice in a partition; empty strings for rows without. Names, as everywhere.
  std::vector<std::string> keys = {};
  // For each row, or one for all of them. Rows that are there keep their other tags; for these the batch may be empty.
  std::vector<Tags> tags = {};
  // The cells are not complete: only consumers that write the column are handed them, where they have it in
  // reads_optional, and nobody else's rows become ready. They are replaced without `overwrite`, and what replaces them
  // goes on from them: see Rows::Pieces. Under a lease, the rows are given back instead of completed, one age older.
  // For rows that are there.
  bool partial = false;
  // The epoch of each row when it was handed out, for results that come without a lease: FailedPrecondition if one was
  // sent back since. Empty: not looked at.
  std::vector<uint32_t> epochs = {};
  // Replaces cells that are ready: views of the old ones live on, and what is done stays done. Cells that are partial
  // it replaces by ones that do not go on from them.
  bool overwrite = false;
  // The version of the weights that made these cells.
  int64_t weights_version = kNoWeightsVersion;
  // Until when to wait for room for new rows, in a partition with a budget. In the past: do not wait.
  absl::Time deadline = absl::InfinitePast();
  std::stop_token cancel = {};
};

struct PutResult {
  // One for each row of the batch: the new ids, or those of the request.
  std::vector<RowId> rows = {};
};

struct TakeRequest {
  std::string partition = {};
  std::string consumer = {};
  // Rows, or groups for a consumer of groups. 1 ≤ min ≤ max.
  int64_t min = 1;
  int64_t max = 1;
  // Below the consumer's `ranks`.
  int32_t rank = 0;
  // Exactly these rows, in this order, whatever the sampler: for consumers of rows. Then min and max are not looked at,
  // and there is no wait: FailedPrecondition if one is not ready.
  std::vector<RowId> rows = {};
  // In the past: answer at once.
  absl::Time deadline = absl::InfinitePast();
  // Ends the wait with Cancelled.
  std::stop_token cancel = {};
};

struct Taken {
  // None for a consumer that takes rows at most once.
  LeaseId lease = kNoLease;
  // When the lease ends. What is published after that is refused.
  absl::Time expires = absl::InfiniteFuture();
  Rows rows = {};
};

struct FetchRequest {
  std::string partition = {};
  std::vector<RowId> rows = {};
  std::vector<std::string> columns = {};
  absl::Time deadline = absl::InfinitePast();
  std::stop_token cancel = {};
};

struct LeaseRequest {
  std::string partition = {};
  LeaseId lease = kNoLease;
  // Empty: all that the lease still holds.
  std::vector<RowId> rows = {};
  // As for puts. For Complete only.
  int64_t step = kNoStep;
};

struct RequeueRequest {
  std::string partition = {};
  std::string consumer = {};
  // Empty: all that are quarantined.
  std::vector<RowId> rows = {};
};

struct StepRequest {
  std::string partition = {};
  std::string consumer = {};
  int64_t step = 0;
  // For Rollback only: the version of the weights that it goes back to. None: cells and the published version stay.
  int64_t weights_version = kNoWeightsVersion;
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
};

struct ListedRow {
  RowId row = 0;
  GroupId group = kNoGroup;
  std::string key = {};
  Tags tags = {};
  int32_t age = 0;
  uint32_t epoch = 0;
};

struct ListResult {
  // Ascending; at most `limit`, and fewer where the dock stops looking to let others go on.
  std::vector<ListedRow> rows = {};
  // Where to go on; unset at the end.
  std::optional<RowId> next = {};
};

// What to clear: the rows, or the groups, or those with all of these tags, or everything. Naming more or less than one
// of them is InvalidArgument.
struct ClearRequest {
  std::string partition = {};
  std::vector<RowId> rows = {};
  std::vector<GroupId> groups = {};
  Tags tags = {};
  // Also unseals.
  bool everything = false;
};

struct ConsumerStatus {
  // Rows that are there now, by their state for this consumer.
  int64_t waiting = 0;
  int64_t ready = 0;
  int64_t leased = 0;
  int64_t quarantined = 0;
  int64_t done = 0;
  // Of those that are done, the ones that may still be rolled back; and the last step that was committed.
  int64_t uncommitted = 0;
  int64_t committed_step = kNoStep;
  // Rows, or groups for a consumer of groups, that a Take could have now.
  int64_t takeable = 0;
  // Since it was registered: rows that it completed, dropped ones not counted, and rows whose lease expired.
  int64_t completed = 0;
  int64_t expired = 0;
  // Rows that it gave back with partial cells.
  int64_t unfinished = 0;
  // Rows that were too old for it, by what became of them; and rows that it had taken, was done with or had lost, and
  // has to take again, because what it read or wrote was sent back.
  int64_t sent_back = 0;
  int64_t stale_dropped = 0;
  int64_t reset = 0;
};

struct ColumnStatus {
  std::string name = {};
  // Unset for a column that a consumer reads and nobody has put.
  bool typed = false;
  ColumnType type = {};
  int64_t ready_cells = 0;
};

struct NamedConsumerStatus {
  std::string name = {};
  ConsumerStatus status = {};
};

struct PartitionStatus {
  bool sealed = false;
  // The published one.
  int64_t weights_version = kNoWeightsVersion;
  int64_t rows = 0;
  int64_t groups = 0;
  // Groups of which not all rows are there.
  int64_t incomplete_groups = 0;
  // The consumers that rows must outlive.
  std::vector<std::string> retain_for = {};
  // Bytes that the partition's cells occupy, those of views that outlive their cells included.
  int64_t held_bytes = 0;
  // In the order in which they were named first.
  std::vector<ColumnStatus> columns = {};
  std::vector<NamedConsumerStatus> consumers = {};
};

enum class CellState {
  kEmpty,
  kPartial,  // only those who write it are handed it
  kReady,
};
// "empty", "partial" or "ready".
absl::string_view CellStateName(CellState state);

// One column of a row.
struct RowCellStatus {
  std::string column = {};
  CellState state = CellState::kEmpty;
  // Of a cell that is there, a partial one included: its size; the version as Rows::WeightsVersion gives it; and the
  // consumer under whose lease it was put, which may have been dropped since. No writer: it was put without a lease.
  int64_t bytes = 0;
  int64_t weights_version = kNoWeightsVersion;
  std::string writer = {};
};

// The states of dock.h.
enum class DeliveryState { kWaiting, kReady, kLeased, kQuarantined, kDone };
// "waiting", "ready", "leased", "quarantined" or "done".
absl::string_view DeliveryStateName(DeliveryState state);

// How a row stands with a consumer.
struct RowConsumerStatus {
  std::string consumer = {};
  DeliveryState state = DeliveryState::kWaiting;
  // The columns that it waits for.
  std::vector<std::string> missing = {};
  // As Rows::redeliveries; of a row that is quarantined, the consumer's max_deliveries.
  int32_t redeliveries = 0;
  // Of a row that is leased: when it was taken, and when the lease ends.
  LeaseId lease = kNoLease;
  absl::Time taken = absl::InfinitePast();
  absl::Time expires = absl::InfiniteFuture();
  // Of a row that is done and may still be rolled back: the step that completed it.
  int64_t uncommitted_step = kNoStep;
};

struct RowStatus {
  RowId row = 0;
  GroupId group = kNoGroup;
  std::string key = {};
  Tags tags = {};
  int32_t age = 0;
  uint32_t epoch = 0;
  // In the order in which the columns were named first, and the consumers registered.
  std::vector<RowCellStatus> cells = {};
  std::vector<RowConsumerStatus> consumers = {};
};

}  // namespace tdock
