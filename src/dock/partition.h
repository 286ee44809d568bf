// One partition of a dock inside this process.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "dock/block_store.h"
#include "dock/budget.h"
#include "dock/table.h"
#include "tdock/dock.h"

namespace tdock {

// A table of states and a store of bytes under one lock, which is held for bookkeeping only: payload is copied,
// allocated and freed without it. The methods are Dock's. Thread-safe.
class Partition {
 public:
  // Payload lies in `memory`, which views keep alive.
  Partition(PartitionOptions options, Clock& clock, std::shared_ptr<Memory> memory,
            std::shared_ptr<const Table::OwnSamplers> samplers)
      : clock_(clock),
        blocks_{.memory = std::move(memory)},
        samplers_(std::move(samplers)),
        refuses_nan_(options.refuse_nan),
        limited_(Budget(options).limited()),
        table_(std::move(options)),
        budget_(table_.options()) {}

  absl::Status Matches(const PartitionOptions& options) TDOCK_EXCLUDES(mu_);
  absl::Status RegisterConsumer(const ConsumerOptions& options) TDOCK_EXCLUDES(mu_);
  absl::Status DropConsumer(absl::string_view consumer) TDOCK_EXCLUDES(mu_);
  absl::StatusOr<PutResult> Put(const PutRequest& request) TDOCK_EXCLUDES(mu_);
  absl::StatusOr<Taken> Take(const TakeRequest& request) TDOCK_EXCLUDES(mu_);
  absl::StatusOr<Rows> Fetch(const FetchRequest& request) TDOCK_EXCLUDES(mu_);
  absl::Status Complete(const LeaseRequest& request) TDOCK_EXCLUDES(mu_);
  absl::Status Release(const LeaseRequest& request) TDOCK_EXCLUDES(mu_);
  absl::StatusOr<absl::Time> Renew(LeaseId lease) TDOCK_EXCLUDES(mu_);
  absl::Status Drop(const LeaseRequest& request) TDOCK_EXCLUDES(mu_);
  absl::Status Requeue(const RequeueRequest& request) TDOCK_EXCLUDES(mu_);
  absl::Status Commit(const StepRequest& request) TDOCK_EXCLUDES(mu_);
  absl::Status Rollback(const StepRequest& request) TDOCK_EXCLUDES(mu_);
  absl::Status PublishWeights(int64_t version) TDOCK_EXCLUDES(mu_);
  absl::StatusOr<std::vector<RowId>> FindRows(std::span<const std::string> keys) TDOCK_EXCLUDES(mu_);
  absl::StatusOr<ListResult> List(const ListRequest& request) TDOCK_EXCLUDES(mu_);
  absl::Status Seal() TDOCK_EXCLUDES(mu_);
  absl::StatusOr<int64_t> Clear(const ClearRequest& request) TDOCK_EXCLUDES(mu_);
  absl::StatusOr<PartitionStatus> GetStatus() TDOCK_EXCLUDES(mu_);
  absl::StatusOr<ConsumerStatus> GetConsumerStatus(absl::string_view consumer) TDOCK_EXCLUDES(mu_);
  absl::StatusOr<std::string> Explain(absl::string_view consumer) TDOCK_EXCLUDES(mu_);

  // Calls that wait, and calls to come, fail with NotFound.
  void Close() TDOCK_EXCLUDES(mu_);

 private:
  // Those who wait for rows of one consumer.
  struct Waiters {
    struct Waiter {
      int32_t rank;
      int64_t least;
      absl::Time until;  // when it looks again by itself
    };
    CondVar changed;
    std::vector<Waiter*> waiting;
  };

  // What a call leaves to be done when it has let go of the lock: declared before the lock is taken.
  struct Aftermath {
    ~Aftermath();
    std::vector<CondVar*> wake;
    std::vector<std::shared_ptr<Block>> garbage;
    Partition* partition = nullptr;  // whose blocks are to be compacted
    std::vector<BlockStore::Compaction> compactions;
  };

  // What every call does first: fails if the partition was dropped, and ends the leases whose time is over.
  absl::Status Begin() TDOCK_REQUIRES(mu_);
  // What every call that changes something does last.
  void End(Aftermath& after) TDOCK_REQUIRES(mu_);
  void CollectWakes(std::vector<CondVar*>& wake) TDOCK_REQUIRES(mu_);
  void Compact(std::vector<BlockStore::Compaction> compactions) TDOCK_EXCLUDES(mu_);

  // Waits until new rows are let in, and counts them as under way; nothing for other puts.
  absl::StatusOr<Claim> AwaitRoom(const PutRequest& request) TDOCK_EXCLUDES(mu_);
  // Whether the put is let in now, or has to wait; fills in the rows of its claim.
  absl::StatusOr<bool> Fits(const PutRequest& request, Claim& claim) TDOCK_REQUIRES(mu_);
  // The same, and counts it as under way, or as waiting.
  absl::StatusOr<bool> LetIn(const PutRequest& request, Claim& claim) TDOCK_EXCLUDES(mu_);
  Budget::Use Use() const TDOCK_REQUIRES(mu_);
  int64_t BytesOf(CellRef cell) const TDOCK_REQUIRES(mu_);
  void NotifyRoom() { blocks_.held->freed.Notify(); }

  // ResourceExhausted where there is no memory.
  absl::Status Write(const Batch& batch, std::span<BlockStore::Placement> placements) TDOCK_EXCLUDES(mu_);
  std::vector<RowId> Publish(const PutRequest& request, std::span<uint32_t> columns,
                             std::span<BlockStore::Placement> placements) TDOCK_REQUIRES(mu_);
  // Waits until `min` rows or groups, or as many as can come, are takeable.
  struct Awaited {
    uint32_t consumer;
    int64_t least;
  };
  absl::StatusOr<Awaited> AwaitRows(const TakeRequest& request) TDOCK_REQUIRES(mu_);
  // What a take hands out, and to whom.
  absl::StatusOr<std::vector<RowId>> ChooseRows(const TakeRequest& request, uint32_t& consumer) TDOCK_REQUIRES(mu_);
  // Drops or sends back those of the rows that are too old for the consumer; true if there are none.
  absl::StatusOr<bool> AreFresh(uint32_t consumer, std::span<const RowId> rows, Aftermath& after) TDOCK_REQUIRES(mu_);
  absl::StatusOr<Taken> HandOut(uint32_t consumer, std::span<const RowId> rows, int32_t rank, Aftermath& after)
      TDOCK_REQUIRES(mu_);
  // Of a cell's block.
  auto VersionOf() const TDOCK_REQUIRES(mu_) {
    return [this](CellRef cell) TDOCK_REQUIRES(mu_) { return store_.BlockOf(cell)->shape().weights_version; };
  }
  // The columns that a consumer is handed: those that it waits for, and the others that have a type.
  std::vector<uint32_t> ColumnsFor(uint32_t consumer) const TDOCK_REQUIRES(mu_);
  std::shared_ptr<const std::vector<ColumnSpec>> SpecOf(uint32_t consumer, std::span<const uint32_t> columns)
      TDOCK_REQUIRES(mu_);
  void WakeAll() TDOCK_EXCLUDES(mu_);
  // Labels and histories of the rows.
  void Describe(std::span<const RowId> rows, RowsData& data) TDOCK_REQUIRES(mu_);
  void DescribePieces(RowId row, uint32_t column, RowsData& data) TDOCK_REQUIRES(mu_);
  // Partial cells only of the columns that the viewer writes.
  RowsData View(std::span<const RowId> rows, std::span<const uint32_t> columns, std::span<const uint32_t> writes)
      TDOCK_REQUIRES(mu_);

  Clock& clock_;
  const BlockSource blocks_;
  const std::shared_ptr<const Table::OwnSamplers> samplers_;

  const bool refuses_nan_;
  const bool limited_;

  Mutex mu_;
  bool dropped_ TDOCK_GUARDED_BY(mu_) = false;
  Table table_ TDOCK_GUARDED_BY(mu_);
  BlockStore store_ TDOCK_GUARDED_BY(mu_);
  Budget budget_ TDOCK_GUARDED_BY(mu_);
  // Of the puts that wait for room, in the order in which they came.
  std::deque<const Claim*> turns_ TDOCK_GUARDED_BY(mu_);
  // By consumer; a deque, because waiters hold on to their place.
  std::deque<Waiters> waiters_ TDOCK_GUARDED_BY(mu_);
  CondVar cells_put_;
  int fetches_waiting_ TDOCK_GUARDED_BY(mu_) = 0;
  // The columns that each consumer was handed last.
  std::vector<std::shared_ptr<const std::vector<ColumnSpec>>> specs_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock
