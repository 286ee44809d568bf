// Decisions about what a table allows, over its state, which they do not change. The event that a decision allows may
// be applied as long as the state is unchanged.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "dock/table/samplers.h"
#include "dock/table/table_image.h"
#include "dock/table/table_state.h"
#include "tdock/dock.h"

namespace tdock::dock {

// ---- Lookups. Errors name what there is.

absl::StatusOr<Place> FindOrError(const TableState& table, RowId row);
absl::Status CheckRows(const TableState& table, const std::vector<RowId>& rows);
absl::StatusOr<uint32_t> FindConsumer(const TableState& table, absl::string_view name);
// `guess`: a column that it may be.
absl::StatusOr<uint32_t> FindColumn(const TableState& table, absl::string_view name, uint32_t guess);
absl::StatusOr<const Lease*> FindLease(const TableState& table, LeaseId lease);
absl::StatusOr<std::vector<RowId>> FindRows(const TableState& table, std::span<const std::string> keys);
absl::StatusOr<ListResult> List(const TableState& table, const ListRequest& request);

// ---- Consumers and steps.

// True if the consumer is new, false if it is registered with equal options.
absl::StatusOr<bool> CheckConsumer(const TableState& table, const ConsumerOptions& options);
absl::Status CheckDropConsumer(const TableState& table, absl::string_view name);
absl::Status CheckRoomForColumns(const TableState& table, size_t more);
// Checks the step of a request that completes rows for the consumer of the lease.
absl::Status CheckStep(const TableState& table, LeaseId lease, int64_t step);
// The consumer of the request.
absl::StatusOr<uint32_t> CheckCommit(const TableState& table, const StepRequest& request);
absl::StatusOr<uint32_t> CheckRollback(const TableState& table, const StepRequest& request);

// ---- Puts.

// The number of rows that a put is for.
inline int64_t RowsOf(const PutRequest& request) {
  return request.batch.columns().empty() ? request.new_rows : request.batch.rows();
}
// The size of the groups that a put starts.
inline int64_t GroupSizeFor(const TableState& table, const PutRequest& request) {
  return request.group_size > 0 ? request.group_size : table.options.group_size;
}
// The table's column for each column of the batch, Schema::kNone for those that the put would add.
absl::StatusOr<std::vector<uint32_t>> CheckPut(const TableState& table, const PutRequest& request);
absl::StatusOr<std::vector<uint32_t>> CheckPut(const TableState& table, const FillRequest& request);
// The rows that a put claims, including those of the groups that it begins.
int64_t RowsClaimedBy(const TableState& table, const PutRequest& request);
// FailedPrecondition if only a commit can make room for this many rows.
absl::Status CheckNeedsNoCommit(const TableState& table, int64_t rows);

// ---- Takes and fetches.

absl::Status CheckTake(const TableState& table, uint32_t consumer, const TakeRequest& request);
// The rows that the request names.
absl::Status CheckTakeOfRows(const TableState& table, uint32_t consumer, const TakeRequest& request);
// The number of units that a take of at least `min` must wait for: fewer if fewer can come. OutOfRange or
// FailedPrecondition if none can.
absl::StatusOr<int64_t> LeastToTake(const TableState& table, uint32_t consumer, int32_t rank, int64_t min);
// FailedPrecondition if no more rows are admitted before the consumer is done with some, and it waits for more.
absl::Status CheckCanCome(const TableState& table, uint32_t consumer, int32_t rank, int64_t min);
// The number of items of a cell.
using LengthOf = absl::FunctionRef<int64_t(CellRef)>;
// The rows of `min` to `max` rows or groups, chosen by the consumer's sampler; that many must be takeable. Internal
// if a custom sampler fails.
absl::StatusOr<std::vector<RowId>> Choose(const TableState& table, uint32_t consumer, int32_t rank, int64_t min,
                                          int64_t max, const CustomSamplers& samplers, LengthOf length_of);
// One for each row; empty if there are none.
std::vector<int32_t> RedeliveriesOf(const TableState& table, uint32_t consumer, std::span<const RowId> rows);
// The columns of a fetch, in its order; how many of its cells are not ready yet, and one of these.
struct FetchPlan {
  std::vector<uint32_t> columns;
  int64_t missing_cells = 0;
  RowId missing_row = 0;
  uint32_t missing_column = 0;
};
absl::StatusOr<FetchPlan> CheckFetch(const TableState& table, const FetchRequest& request);

// ---- Leases, and rows that go.

// The rows of the request, or all that the lease holds.
absl::StatusOr<std::vector<RowId>> CheckLease(const TableState& table, const LeaseRequest& request);
// The rows of the request.
absl::StatusOr<std::vector<RowId>> CheckDrop(const TableState& table, const LeaseRequest& request);
absl::StatusOr<std::vector<RowId>> CheckRequeue(const TableState& table, const RequeueRequest& request);
absl::Status CheckSeal(const TableState& table);
// The rows to clear, and the groups that are forgotten with them.
struct ClearPlan {
  std::vector<RowId> rows;
  std::vector<GroupId> groups;
};
absl::StatusOr<ClearPlan> CheckClear(const TableState& table, const ClearRequest& request);

// ---- Versions of the weights.

absl::Status CheckPublish(const TableState& table, int64_t version);
// What happens to rows that are too old for a consumer, or made by weights that are rolled back: grouped by what must
// be recomputed, and by which consumers.
struct SendBack {
  std::vector<RowId> rows;
  std::vector<uint32_t> columns;
  std::vector<uint32_t> consumers;
  bool whole_groups = false;
};
struct StaleRows {
  std::vector<SendBack> sent_back;
  std::vector<RowId> dropped;

  bool empty() const { return sent_back.empty() && dropped.empty(); }
};
// The version of a cell's block.
using VersionOf = absl::FunctionRef<int64_t(CellRef)>;
// For rows that a take is about to hand out. FailedPrecondition if no consumer would recompute the cells.
absl::StatusOr<StaleRows> FindStale(const TableState& table, uint32_t consumer, std::span<const RowId> rows,
                                    VersionOf version_of);
// All cells made in part by later weights than this version. FailedPrecondition as above.
absl::StatusOr<StaleRows> FindLater(const TableState& table, int64_t version, VersionOf version_of);

// ---- For people.

PartitionStatus StatusOf(const TableState& table);
// Fills in the bytes, and the version and writer of the block, of an existing cell.
using DescribeCell = absl::FunctionRef<void(CellRef, RowCellStatus&)>;
absl::StatusOr<RowStatus> StatusOfRow(const TableState& table, RowId row, DescribeCell describe);
// What a consumer, or a fetch, is waiting for.
std::string Explain(const TableState& table, uint32_t consumer, absl::Time now);
std::string ExplainFetch(const TableState& table, const FetchRequest& request, const FetchPlan& plan, absl::Time now);
void ExplainGroups(const TableState& table, const Consumer& consumer, std::string& text);
void ExplainQuarantine(const Consumer& consumer, std::string& text);

// Every live row once; the cost grows with their cells and the consumers.
TableImage ImageOf(const TableState& table);

}  // namespace tdock::dock
