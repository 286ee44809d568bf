// The states of a partition: which rows and cells there are, and what each consumer may do with them. No bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dock/event.h"
#include "dock/id_set.h"
#include "dock/page.h"
#include "tdock/dock.h"

namespace tdock {

// Decisions (Check…, Choose, …) change nothing; Apply is the only way to change anything, and never fails: it is given
// events that a decision on the same state has allowed. Not thread-safe, and never blocks.
class Table {
 public:
  explicit Table(PartitionOptions options);

  // ---- Decisions.

  const PartitionOptions& options() const { return options_; }
  bool sealed() const { return sealed_; }
  // Counts the events applied: while it stays the same, so does every decision.
  uint64_t changes() const { return changes_; }

  absl::StatusOr<uint32_t> FindConsumer(absl::string_view name) const;
  const ConsumerOptions& consumer_options(uint32_t consumer) const { return consumers_[consumer]->options; }

  // True if the consumer is new, false if it is registered with equal options.
  absl::StatusOr<bool> CheckConsumer(const ConsumerOptions& options) const;

  static constexpr uint32_t kNewColumn = ~uint32_t{0};
  // The column of the table for each column of the batch, kNewColumn for those that the put would add.
  absl::StatusOr<std::vector<uint32_t>> CheckPut(const PutRequest& request) const;
  // After the put's columns were added.
  uint32_t ColumnIndex(absl::string_view name) const;
  // The size of the groups that a put starts.
  int64_t GroupSizeFor(const PutRequest& request) const {
    return request.group_size > 0 ? request.group_size : options_.group_size;
  }
  RowId next_row() const { return next_row_; }

  // The rows or groups that the consumer could take now.
  int64_t Takeable(uint32_t consumer) const { return consumers_[consumer]->takeable.size(); }
  // The least that a take of at least `min` has to wait for: less than that where less can come. OutOfRange or
  // FailedPrecondition where nothing can.
  absl::StatusOr<int64_t> LeastToTake(uint32_t consumer, int64_t min) const;
  // The rows of at most `max` rows or groups, by the consumer's sampler.
  std::vector<RowId> Choose(uint32_t consumer, int64_t max) const;
  // The id of the next lease.
  LeaseId NextLease() const;

  // The rows of the request, or all that the lease holds.
  absl::StatusOr<std::vector<RowId>> CheckLease(const LeaseRequest& request) const;
  // The lease that is next to expire, if it has by then.
  std::optional<LeaseId> NextExpired(absl::Time now) const;
  absl::Time NextExpiry() const;

  absl::Status CheckSeal() const;
  absl::StatusOr<std::vector<RowId>> CheckClear(const ClearRequest& request) const;

  // The columns of a fetch, in its order; and how many of its cells are not ready yet.
  struct FetchPlan {
    std::vector<uint32_t> columns;
    int64_t missing_cells = 0;
  };
  absl::StatusOr<FetchPlan> CheckFetch(const FetchRequest& request) const;

  // ---- What is there.

  std::span<const uint32_t> reads(uint32_t consumer) const { return consumers_[consumer]->reads; }
  const ColumnSpec& column(uint32_t index) const { return columns_[index].spec; }
  bool IsTyped(uint32_t column) const { return columns_[column].typed; }

  // A row that is there. Good until the next event.
  struct Place {
    Page* page;
    uint64_t slot;

    RowId row() const { return page->first + slot; }
    GroupId group() const {
      const Group* const group = page->GroupAt(slot);
      return group == nullptr ? kNoGroup : group->id;
    }
    CellRef cell(uint32_t column) const { return page->CellAt(slot, column); }
    RowState& state(uint32_t consumer) const { return page->consumers[consumer]->state[slot]; }
    uint32_t& lease(uint32_t consumer) const { return page->consumers[consumer]->lease[slot]; }
  };
  std::vector<Place> Locate(std::span<const RowId> rows) const;
  // Of each row; empty if there are none.
  std::vector<int32_t> RedeliveriesOf(uint32_t consumer, std::span<const RowId> rows) const;

  PartitionStatus Status() const;
  ConsumerStatus StatusOf(uint32_t consumer) const;

  // For people: what keeps a consumer, or a fetch, from going on.
  std::string Explain(uint32_t consumer, absl::Time now) const;
  std::string ExplainFetch(const FetchRequest& request, const FetchPlan& plan, absl::Time now) const;

  // ---- Changes.

  void Apply(const Event& event);

  // The cells that events have emptied or replaced since the last call.
  std::vector<CellRef> TakeDroppedCells() { return std::exchange(dropped_cells_, {}); }

 private:
  struct Column {
    ColumnSpec spec;
    bool typed = false;
    int64_t ready_cells = 0;
    std::vector<uint32_t> readers;
    std::vector<uint32_t> writers;
  };

  struct Consumer {
    ConsumerOptions options;
    std::vector<uint32_t> reads;
    std::vector<uint32_t> writes;
    // The row ids, or the leaders of the groups, that can be taken.
    IdSet takeable;
    // Of a consumer of groups: its place in Group::counts.
    size_t group_slot = 0;
    bool retained = false;
    int64_t ready = 0;
    int64_t leased = 0;
    int64_t done = 0;
    // Of a consumer of groups: rows without a group that are done; groups that cannot be taken as a whole any more;
    // and, by leader, those of them that are not done.
    int64_t lone_done = 0;
    int64_t dead_groups = 0;
    IdSet stuck_groups;
    int64_t completed = 0;
    int64_t expired = 0;
    uint64_t takes = 0;
    absl::btree_set<LeaseId> leases;
    absl::flat_hash_map<RowId, int32_t> redeliveries;
    // No page before the one of this row has rows that wait: where to start looking for some.
    mutable RowId waiting_from = 0;

    bool by_group() const { return options.unit == Unit::kGroup; }
  };

  struct Lease {
    LeaseId id = kNoLease;
    uint32_t consumer = 0;
    absl::Time at;
    absl::Time expires;
    // What was taken; those that it still holds are the ones whose state says so.
    std::vector<RowId> rows;
    int64_t held = 0;
  };

  static uint32_t LeaseKey(LeaseId lease) { return static_cast<uint32_t>(lease); }

  // table_check.cc
  std::optional<Place> Find(RowId row) const;
  absl::StatusOr<Place> FindOrError(RowId row) const;
  absl::StatusOr<const Lease*> FindLease(LeaseId lease) const;
  bool Holds(const Lease& lease, const Place& place) const;
  absl::StatusOr<uint32_t> FindColumn(absl::string_view name, uint32_t guess) const;
  absl::StatusOr<std::vector<uint32_t>> CheckColumns(const PutRequest& request) const;
  absl::Status CheckNewRows(const PutRequest& request) const;
  absl::Status CheckGroups(const PutRequest& request) const;
  absl::Status CheckRowsOfPut(const PutRequest& request, std::span<const uint32_t> columns) const;
  absl::Status CheckLeaseOfPut(const PutRequest& request, std::span<const uint32_t> columns) const;
  absl::Status CheckColumnNames(const std::vector<std::string>& names, absl::string_view what) const;
  int64_t MayStillCome(const Consumer& consumer) const;

  // table_explain.cc
  std::string LeaseText(const Lease& lease, absl::Time now) const;
  std::string WriterText(const Place& place, uint32_t column, absl::Time now) const;
  void ExplainColumns(const Consumer& consumer, std::string& text) const;
  void ExplainWaitingRows(uint32_t consumer, absl::Time now, std::string& text) const;
  void ExplainLeases(uint32_t consumer, absl::Time now, std::string& text) const;
  void ExplainGroups(const Consumer& consumer, std::string& text) const;

  // table.cc
  void On(const ColumnAdded& event);
  void On(const ConsumerRegistered& event);
  void On(const RowsPut& event);
  void On(const RowsTaken& event);
  void On(const RowsCompleted& event);
  void On(const RowsReturned& event);
  void On(const LeaseExpired& event);
  void On(const RowsCleared& event);
  void On(const SealChanged& event);

  Place At(RowId row) const;
  Page& PageFor(RowId row);
  CellRef* CellsFor(Page& page, uint32_t column);
  uint32_t ColumnFor(const std::string& name);
  void PutNewRows(const RowsPut& event);
  void PutSegment(const RowsPut& event, Page& page, int64_t first, int64_t count);
  void JoinGroups(const RowsPut& event, RowId first_row);
  void PutInRows(const RowsPut& event);
  void Move(uint32_t consumer, const Place& place, RowState to);
  void MoveInGroup(Consumer& consumer, Group& group, RowState from, RowState to);
  static bool IsDead(const Consumer& consumer, const Group& group);
  // Counts a group among the consumer's dead ones, or no more, before or after it changes.
  static void CountDead(Consumer& consumer, const Group& group, bool after);
  // Takes a row out of its lease.
  void LeaveLease(uint32_t consumer, const Place& place);
  void EndLease(const Lease& lease);
  void Finish(LeaseId lease, std::span<const RowId> rows);
  bool MayRelease(const Place& place) const;
  void Remove(const Place& place, bool cleared);
  void RemoveFromGroup(const Place& place, Group& group, bool cleared);

  const PartitionOptions options_;
  bool sealed_ = false;
  uint64_t changes_ = 0;
  RowId next_row_ = 0;
  LeaseId last_lease_ = kNoLease;
  int64_t rows_ = 0;
  int64_t lone_rows_ = 0;    // without a group
  IdSet incomplete_groups_;  // by leader

  std::vector<Column> columns_;
  absl::flat_hash_map<std::string, uint32_t> column_by_name_;
  std::vector<std::unique_ptr<Consumer>> consumers_;
  absl::flat_hash_map<std::string, uint32_t> consumer_by_name_;
  size_t group_consumers_ = 0;
  // The consumers that rows must outlive, unset while they are not registered.
  std::vector<std::optional<uint32_t>> retainers_;

  // By the number of the page, row / Page::kRows; and those numbers in order.
  absl::flat_hash_map<uint64_t, std::unique_ptr<Page>> pages_;
  absl::btree_set<uint64_t> page_order_;
  mutable Page* last_page_ = nullptr;  // the one found last
  absl::flat_hash_map<GroupId, std::unique_ptr<Group>> groups_;
  absl::flat_hash_map<RowId, Group*> group_by_leader_;
  absl::flat_hash_map<uint32_t, Lease> leases_;
  absl::btree_set<std::pair<absl::Time, LeaseId>> expiries_;

  std::vector<CellRef> dropped_cells_;
  std::vector<uint8_t> hits_;  // scratch of a put: by consumer, how many of its columns come
};

}  // namespace tdock
