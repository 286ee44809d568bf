// The states of a partition, changed by events.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "dock/table/event.h"
#include "dock/table/table_image.h"
#include "dock/table/table_state.h"

namespace tdock::dock {

// Apply is the only way to change a table, and never fails: it must be given events that a decision on the same state
// has allowed (decisions.h). Not thread-safe, and never blocks.
class Table {
 public:
  // Leases are numbered from `last_lease` + 1 on.
  explicit Table(PartitionOptions options, LeaseId last_lease = kNoLease);

  const TableState& operator*() const { return state_; }
  const TableState* operator->() const { return &state_; }

  void Apply(const Event& event);

  // Makes a new table, of the options that the image's had, equal to the image's. InvalidArgument if there can be no
  // such table, whatever the image holds; this one must not be used then. Blocks of cells are not looked at.
  absl::Status Restore(const TableImage& image);
  // Leases are numbered from a number above this one on.
  void SkipLeases(LeaseId last) { state_.leases.SkipTo(last); }

  // The cells removed since the last call: with their rows, and others.
  std::vector<CellRef> TakeRemovedCells() { return std::exchange(removed_cells_, {}); }
  std::vector<CellRef> TakeReplacedCells() { return std::exchange(replaced_cells_, {}); }

 private:
  // table_image.cc
  absl::Status RestoreNumbers(const TableImage& image);
  absl::Status RestoreColumns(const TableImage& image);
  absl::Status RestoreGroups(const TableImage& image);
  absl::Status RestoreRow(const TableImage& image, const TableImage::Row& row);
  absl::Status RestoreCells(const TableImage::Column& column);
  absl::Status RestoreConsumer(const TableImage::ConsumerState& image);
  absl::Status RestoreDone(uint32_t index, const std::vector<TableImage::DoneRow>& done);
  absl::Status RestoreRedeliveries(uint32_t index, const std::vector<TableImage::Redelivery>& redeliveries);

  // table.cc
  void On(const ColumnAdded& event);
  void On(const ConsumerRegistered& event);
  void On(const ConsumerDropped& event);
  void On(const RowsPut& event);

  // table_rows.cc
  void On(const RowsTaken& event);
  void On(const RowsCompleted& event);
  void On(const RowsReturned& event);
  void On(const LeaseExpired& event);
  void On(const LeaseRenewed& event);
  void On(const RowsRequeued& event);
  void On(const StepCommitted& event);
  void On(const StepsRolledBack& event);
  void On(const RowsDropped& event);
  void On(const RowsSentBack& event);
  void On(const WeightsPublished& event);
  void On(const RowsCleared& event);
  void On(const SealChanged& event);

  // table.cc
  void AddExistingRows(uint32_t consumer);
  void Forget(uint32_t consumer);
  CellRef* CellsFor(Page& page, uint32_t column);
  void PutNewRows(const RowsPut& event);
  void LabelRows(const RowsPut& event, std::span<const RowId> rows);
  void PutSegment(const RowsPut& event, Page& page, uint64_t slot, int64_t first, int64_t count);
  void JoinGroups(Page& page, uint64_t slot, std::span<const GroupId> ids, int64_t group_size);
  // Called before and after every change of a group's rows.
  void LeaveConsumers(const Group& group);
  void EnterConsumers(const Group& group);
  void PutInRows(const RowsPut& event);
  void NotePieces(const RowsPut& event, std::span<const Place> places, size_t column);
  void Move(uint32_t consumer, const Place& place, RowState to);
  void Raise(const Place& place, bool sent_back);

  // table_rows.cc
  // Removes a row from its lease.
  void LeaveLease(uint32_t consumer, const Place& place);
  void EndLease(const Lease& lease);
  void Finish(uint32_t consumer, std::span<const RowId> rows, RowState state);
  void ForEachUncommitted(uint32_t consumer, const Consumer::RowsOfStep& step,
                          absl::FunctionRef<void(const Place&)> visit);
  void EmptyCell(const Place& place, uint32_t column, bool of_removed_row);
  void Reset(uint32_t consumer, const Place& place, std::span<const uint32_t> emptied);
  bool MayRelease(const Place& place) const;
  void Remove(const Place& place, bool cleared);

  TableState state_;
  std::vector<CellRef> removed_cells_, replaced_cells_;
  std::vector<uint8_t> hits_;  // scratch of a put: for each consumer, how many of its columns are put
};

}  // namespace tdock::dock
