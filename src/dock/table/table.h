// The states of a partition: which rows and cells exist, and what each consumer may do with them. No bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dock/table/consumer.h"
#include "dock/table/event.h"
#include "dock/table/group.h"
#include "dock/table/history.h"
#include "dock/table/labels.h"
#include "dock/table/leases.h"
#include "dock/table/pages.h"
#include "dock/table/schema.h"
#include "dock/table/table_image.h"
#include "tdock/dock.h"
#include "tdock/sampler.h"

namespace tdock::dock {

class MissingCells;

// Decisions (Check…, Choose, …) change nothing; Apply is the only way to change the table, and never fails: it must be
// given events that a decision on the same state has allowed. Not thread-safe, and never blocks.
class Table {
 public:
  // Leases are numbered from `last_lease` + 1 on.
  explicit Table(PartitionOptions options, LeaseId last_lease = kNoLease);

  // ---- Decisions.

  const PartitionOptions& options() const { return options_; }
  bool sealed() const { return sealed_; }
  // The number of events applied: while it is unchanged, so is the result of every decision.
  uint64_t changes() const { return changes_; }

  absl::StatusOr<uint32_t> FindConsumer(absl::string_view name) const;
  const Consumer& consumer(uint32_t index) const { return *consumers_[index]; }
  // The registered consumers, in the order of their registration.
  std::span<const uint32_t> consumers() const { return registered_; }
  absl::Status CheckDropConsumer(absl::string_view name) const;
  const Schema& schema() const { return schema_; }

  // True if the consumer is new, false if it is registered with equal options.
  absl::StatusOr<bool> CheckConsumer(const ConsumerOptions& options) const;

  // The table's column for each column of the batch, Schema::kNone for those that the put would add.
  absl::StatusOr<std::vector<uint32_t>> CheckPut(const PutRequest& request) const;
  // The size of the groups that a put starts.
  int64_t GroupSizeFor(const PutRequest& request) const {
    return request.group_size > 0 ? request.group_size : options_.group_size;
  }
  RowId next_row() const { return pages_.next_row(); }
  // The number of rows that a put is for.
  static int64_t RowsOf(const PutRequest& request) {
    return request.batch.columns().empty() && request.rows.empty() ? request.new_rows
           : request.batch.columns().empty()                       ? static_cast<int64_t>(request.rows.size())
                                                                   : request.batch.rows();
  }

  absl::Status CheckTake(uint32_t consumer, const TakeRequest& request) const;
  // The rows that the request names.
  absl::Status CheckTakeOfRows(uint32_t consumer, const TakeRequest& request) const;
  // The number of units that a take of at least `min` must wait for: fewer if fewer can come. OutOfRange or
  // FailedPrecondition if none can.
  absl::StatusOr<int64_t> LeastToTake(uint32_t consumer, int32_t rank, int64_t min) const;
  // FailedPrecondition if no more rows are admitted before the consumer is done with some, and it waits for more.
  absl::Status CheckCanCome(uint32_t consumer, int32_t rank, int64_t min) const;
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
  absl::StatusOr<StaleRows> FindStale(uint32_t consumer, std::span<const RowId> rows, VersionOf version_of) const;
  // All cells made in part by later weights than this version. FailedPrecondition as above.
  absl::StatusOr<StaleRows> FindLater(int64_t version, VersionOf version_of) const;
  absl::Status CheckPublish(int64_t version) const;
  // The smallest and the largest version among the pieces of a cell, or twice none; `of_block` is that of its block.
  struct Versions {
    int64_t oldest = kNoWeightsVersion;
    int64_t newest = kNoWeightsVersion;
  };
  Versions VersionsOf(RowId row, uint32_t column, int64_t of_block) const;
  int64_t weights_version() const { return weights_version_; }

  // The number of items of a cell.
  using LengthOf = absl::FunctionRef<int64_t(CellRef)>;
  using CustomSamplers = std::map<std::string, std::shared_ptr<CustomSampler>>;
  // The rows of `min` to `max` rows or groups, chosen by the consumer's sampler; that many must be takeable. Internal
  // if a custom sampler fails.
  absl::StatusOr<std::vector<RowId>> Choose(uint32_t consumer, int32_t rank, int64_t min, int64_t max,
                                            const CustomSamplers& samplers, LengthOf length_of) const;

  // The rows of the request, or all that the lease holds.
  absl::StatusOr<std::vector<RowId>> CheckLease(const LeaseRequest& request) const;
  absl::StatusOr<const Lease*> FindLease(LeaseId lease) const;
  // The rows of the request.
  absl::StatusOr<std::vector<RowId>> CheckDrop(const LeaseRequest& request) const;
  absl::StatusOr<std::vector<RowId>> CheckRequeue(const RequeueRequest& request) const;
  const Leases& leases() const { return leases_; }
  // Checks the step of a request that completes rows for the consumer of the lease.
  absl::Status CheckStep(LeaseId lease, int64_t step) const;
  // The consumer of the request.
  absl::StatusOr<uint32_t> CheckCommit(const StepRequest& request) const;
  absl::StatusOr<uint32_t> CheckRollback(const StepRequest& request) const;

  absl::Status CheckSeal() const;
  // What to clear: rows, and groups that are forgotten with them.
  struct ClearPlan {
    std::vector<RowId> rows;
    std::vector<GroupId> groups;
  };
  absl::StatusOr<ClearPlan> CheckClear(const ClearRequest& request) const;

  // The columns of a fetch, in its order; how many of its cells are not ready yet, and one of these.
  struct FetchPlan {
    std::vector<uint32_t> columns;
    int64_t missing_cells = 0;
    RowId missing_row = 0;
    uint32_t missing_column = 0;
  };
  absl::StatusOr<FetchPlan> CheckFetch(const FetchRequest& request) const;
  // Whether the row still exists and still lacks this cell.
  bool Lacks(RowId row, uint32_t column) const;

  // The rows that a put of new rows claims, including those of the groups that it begins.
  int64_t RowsClaimedBy(const PutRequest& request) const;
  // FailedPrecondition if only a commit can make room for this many rows.
  absl::Status CheckNeedsNoCommit(int64_t rows) const;
  int64_t rows() const { return pages_.rows(); }
  // The rows that incomplete groups lack.
  int64_t rows_to_come() const { return groups_.rows_to_come(); }
  // The largest group so far.
  int64_t largest_group() const { return largest_group_; }
  // Since the table was created.
  uint64_t groups_begun() const { return groups_.begun(); }

  absl::StatusOr<std::vector<RowId>> FindRows(std::span<const std::string> keys) const;
  absl::StatusOr<ListResult> List(const ListRequest& request) const;

  // ---- Status.

  const Labels& labels() const { return labels_; }
  const Histories& histories() const { return histories_; }

  std::vector<Place> Locate(std::span<const RowId> rows) const { return pages_.Locate(rows); }
  // One for each row; empty if there are none.
  std::vector<int32_t> RedeliveriesOf(uint32_t consumer, std::span<const RowId> rows) const;

  PartitionStatus Status() const;
  // Fills in the bytes, and the version and writer of the block, of an existing cell.
  using DescribeCell = absl::FunctionRef<void(CellRef, RowCellStatus&)>;
  absl::StatusOr<RowStatus> StatusOfRow(RowId row, DescribeCell describe) const;

  // For people: what a consumer, or a fetch, is waiting for.
  std::string Explain(uint32_t consumer, absl::Time now) const;
  std::string ExplainFetch(const FetchRequest& request, const FetchPlan& plan, absl::Time now) const;

  // Every live row once; the cost grows with their cells and the consumers.
  TableImage Image() const;

  // ---- Changes.

  void Apply(const Event& event);

  // Makes a new table, of the options that the image's had, equal to the image's. InvalidArgument if there can be no
  // such table, whatever the image holds; this one must not be used then. Blocks of cells are not looked at.
  absl::Status Restore(const TableImage& image);
  // Leases are numbered from a number above this one on.
  void SkipLeases(LeaseId last) { leases_.SkipTo(last); }

  // The cells removed since the last call: with their rows, and others.
  std::vector<CellRef> TakeRemovedCells() { return std::exchange(removed_cells_, {}); }
  std::vector<CellRef> TakeReplacedCells() { return std::exchange(replaced_cells_, {}); }

 private:
  // table_check.cc
  absl::StatusOr<Place> FindOrError(RowId row) const;
  absl::Status CheckRows(const std::vector<RowId>& rows) const;
  bool Holds(const Lease& lease, const Place& place) const;
  absl::StatusOr<uint32_t> FindCheckpointed(const StepRequest& request) const;
  std::vector<RowId> HeldRows(const Lease& lease) const;
  absl::StatusOr<uint32_t> FindColumn(absl::string_view name, uint32_t guess) const;
  absl::StatusOr<std::vector<uint32_t>> CheckColumns(const PutRequest& request) const;
  absl::Status CheckSizeOfPut(const PutRequest& request) const;
  absl::Status CheckTagsOfRows(const PutRequest& request) const;
  absl::Status CheckNewRows(const PutRequest& request) const;
  absl::Status CheckKeys(const PutRequest& request) const;
  absl::Status CheckGroups(const PutRequest& request) const;
  absl::Status CheckRowsOfPut(const PutRequest& request, std::span<const uint32_t> columns) const;
  absl::Status CheckEpochs(const PutRequest& request) const;
  absl::Status CheckLeaseOfPut(const PutRequest& request, std::span<const uint32_t> columns) const;
  absl::Status CheckColumnNames(const std::vector<std::string>& names, absl::string_view what) const;
  absl::Status CheckRoomForColumns(size_t more) const;
  absl::Status CheckSampler(const ConsumerOptions& options) const;

  // table_take.cc
  absl::StatusOr<std::vector<RowId>> ChooseBy(CustomSampler& sampler, const Consumer& consumer,
                                              const Consumer::Share& share, int64_t min, int64_t max, uint64_t seed,
                                              LengthOf length_of) const;
  Candidate CandidateOf(const Consumer& consumer, RowId unit, LengthOf length_of) const;
  std::vector<RowId> RowsOfUnits(const Consumer& consumer, std::vector<RowId> units) const;

  // table_versions.cc
  using ColumnSet = std::vector<uint32_t>;  // ascending
  // Of one row, the columns that it would be sent back for.
  using StaleColumns = absl::FunctionRef<ColumnSet(const Place&)>;
  absl::StatusOr<StaleRows> PlanSendBack(std::span<const RowId> rows, bool whole_groups,
                                         StaleColumns stale_columns) const;
  absl::StatusOr<SendBack> ProducersOf(const ColumnSet& stale, RowId example) const;
  bool CanBeRecomputed(const Group& group) const;

  // table_status.cc
  RowCellStatus StatusOfCell(const Place& place, uint32_t column, DescribeCell describe) const;
  RowConsumerStatus StatusFor(uint32_t consumer, const Place& place) const;

  // table_explain.cc
  std::string LeaseText(const Lease& lease, absl::Time now) const;
  std::string WriterText(const Place& place, uint32_t column, absl::Time now) const;
  // Notes which of the columns the row lacks, and why. Returns how many: 0 for a row that does not exist.
  size_t AddMissing(RowId row, std::span<const uint32_t> columns, absl::Time now, MissingCells& missing) const;
  void ExplainColumns(const Consumer& consumer, std::string& text) const;
  void ExplainWaitingRows(uint32_t consumer, absl::Time now, std::string& text) const;
  void ExplainLeases(uint32_t consumer, absl::Time now, std::string& text) const;
  void ExplainGroups(const Consumer& consumer, std::string& text) const;
  void ExplainQuarantine(const Consumer& consumer, std::string& text) const;
  void ExplainVersions(const Consumer& consumer, std::string& text) const;

  // table_image.cc
  TableImage::ConsumerState ImageOf(const Consumer& consumer) const;
  void AddTo(TableImage& image, const Place& place) const;
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
  // The age of a row in the order of takeable rows.
  int32_t AgeOf(const Place& place) const {
    const Group* const group = place.group();
    return group != nullptr ? group->age : histories_.Of(place.row()).age;
  }
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

  const PartitionOptions options_;
  bool sealed_ = false;
  uint64_t changes_ = 0;

  Schema schema_;
  Pages pages_;
  Groups groups_;
  Labels labels_;
  Histories histories_;
  bool any_group_aged_ = false;  // ever
  int64_t largest_group_ = 1;
  int64_t weights_version_ = kNoWeightsVersion;
  Leases leases_;
  // Null for a dropped consumer, until the next one reuses the index; and the indexes in use, in the order of
  // registration.
  std::vector<std::unique_ptr<Consumer>> consumers_;
  std::vector<uint32_t> registered_;
  absl::flat_hash_map<std::string, uint32_t> consumer_by_name_;
  // Which indexes into Group::counts are in use.
  std::vector<bool> group_slots_;
  // The consumers that rows are retained for, unset while they are not registered.
  struct Retainer {
    std::string name;
    std::optional<uint32_t> consumer;
  };
  std::vector<Retainer> retainers_;

  std::vector<CellRef> removed_cells_, replaced_cells_;
  // Over all cells that were ever put.
  int64_t newest_version_ = kNoWeightsVersion;
  std::vector<uint8_t> hits_;  // scratch of a put: for each consumer, how many of its columns are put
};

}  // namespace tdock::dock
