// One partition of a dock inside this process.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/notifier.h"
#include "core/base/status.h"
#include "core/base/work_queue.h"
#include "dock/local/budget.h"
#include "dock/local/partition_image.h"
#include "dock/local/served_dock.h"
#include "dock/local/waits.h"
#include "dock/local/writers.h"
#include "dock/store/block_store.h"
#include "dock/store/cell_memory.h"
#include "dock/table/decisions.h"
#include "dock/table/rows_data.h"
#include "dock/table/table.h"
#include "tdock/dock.h"
#include "tdock/verbs.h"

namespace tdock::dock {

// Parts that the partitions of a dock share, and that outlive every call.
struct PartitionsShare {
  Clock& clock;
  // As in ServedDockOptions.
  WorkQueue* work;
  // Copies made of views.
  std::shared_ptr<Memory> copies;
  std::shared_ptr<const CustomSamplers> samplers;
  // When it is called, another thread must call BytesWereFreed().
  std::shared_ptr<Notifier> notifier;
  WaitingCalls& calls;
};

// A table of states and a store of bytes under one lock, which is held for bookkeeping only: payload is copied,
// allocated and freed without it. The methods are Dock's. Thread-safe.
class Partition : public std::enable_shared_from_this<Partition> {
 public:
  // Payload is allocated from `memory`, which views keep alive.
  Partition(PartitionOptions options, const PartitionsShare& share, std::shared_ptr<CellMemory> memory,
            LeaseId last_lease = kNoLease)
      : clock_(share.clock),
        work_(share.work),
        calls_(share.calls),
        blocks_{.memory = std::move(memory), .held = std::make_shared<HeldBytes>(share.notifier)},
        copies_(share.copies),
        samplers_(share.samplers),
        refuses_nan_(options.refuse_nan),
        limited_(Budget(options).limited()),
        table_(std::move(options), last_lease),
        budget_(table_->options) {
    NoteLoad();
  }

  absl::Status Matches(const PartitionOptions& options) TDOCK_EXCLUDES(mu_);
  // Starts a verb of one partition. One that waits blocks this thread, or is answered, without a lock, on the thread
  // that ends the wait: a thread of another call, of the clock's alarms or of the dock, or the thread that requests the
  // stop.
  template <class V>
  void Start(const AnyCall& call) TDOCK_EXCLUDES(mu_) {
    if constexpr (requires(typename V::Request request) { request.cancel; }) {
      StartWaiting<V>(call);
    } else if constexpr (std::is_same_v<V, verbs::Fill>) {
      call.Reply<V>(Fill(call.request<V>()));  // copies without the lock
    } else {
      call.Reply<V>(Do<V>(call.request<V>()));
    }
  }
  template <class V>
  ResultOf<V> Ask(const typename V::Request& request) TDOCK_EXCLUDES(mu_) {
    std::optional<ResultOf<V>> result;
    Start<V>(AnyCall::Blocking<V>(request, result));
    return std::move(result).value();
  }
  absl::StatusOr<std::string> Export() TDOCK_EXCLUDES(mu_);

  // Makes a new partition, with the options of the image, equal to the image's. If it fails, it must not be used.
  absl::Status Restore(PartitionImage image) TDOCK_EXCLUDES(mu_);
  // Leases are numbered from a number above this one on.
  void SkipLeases(LeaseId last) TDOCK_EXCLUDES(mu_);

  absl::Status ExpireLeases(std::span<const LeaseId> leases) TDOCK_EXCLUDES(mu_);
  absl::StatusOr<std::vector<LeaseId>> LiveLeases(std::span<const LeaseId> leases) TDOCK_EXCLUDES(mu_);
  const std::shared_ptr<CellMemory>& memory() const { return blocks_.memory; }

  // As in served_dock.h.
  ServedDock::Load LoadOf(LeaseId lease) TDOCK_EXCLUDES(mu_);
  static std::shared_ptr<void> BeginLong(std::shared_ptr<Partition> partition);

  // Calls that wait, and calls to come, fail with NotFound. Returns the last lease that was given out.
  LeaseId Close() TDOCK_EXCLUDES(mu_);
  // Lets puts in that waited for bytes.
  void BytesWereFreed() TDOCK_EXCLUDES(mu_);

 private:
  // Work that a call does after it has released the lock; declare it before taking the lock.
  struct Cleanup {
    ~Cleanup();
    Partition& partition;
    // Where the calls to wake go; null: it wakes them.
    WakeList* more = nullptr;
    WakeList wake = {};
    std::vector<std::shared_ptr<Block>> garbage = {};
    std::vector<BlockStore::Compaction> compactions = {};
  };

  // What every call does first: fails if the partition was dropped, and ends expired leases.
  absl::Status Begin(Cleanup& cleanup) TDOCK_REQUIRES(mu_);
  // What every call that changes something does last.
  void End(Cleanup& cleanup) TDOCK_REQUIRES(mu_);
  void Compact(std::vector<BlockStore::Compaction> compactions) TDOCK_EXCLUDES(mu_);

  // The verbs of one partition that never wait.
#define TDOCK_ON(Verb, Request, ...) \
  ResultOf<verbs::Verb> On(verbs::Verb, const Request& request, Cleanup& cleanup) TDOCK_REQUIRES(mu_);
  TDOCK_VERBS(TDOCK_ON)
#undef TDOCK_ON

  // Updates the figures that are read without the lock.
  void NoteLoad() TDOCK_REQUIRES(mu_);
  // Without the figures of a lease.
  ServedDock::Load LoadNow() const;

  // ---- Waiting (partition_wait.cc).

  // A put that was admitted: its claim, its places in the store, and the columns of the batch whose bytes are for text.
  struct Admitted {
    Claim claim;
    std::vector<uint32_t> columns;
    std::vector<BlockStore::Placement> placements;
    std::vector<size_t> for_text;
    uint64_t checked_at;  // the table's number of changes
  };
  // The condition that a call waits for.
  struct Wait {
    std::variant<AwaitedRows, AwaitedCell, AwaitedRoom> awaited;
    absl::Time until;
  };
  // The call looks again at once, but others get the lock first.
  struct Again {};
  // The result of one look.
  template <class T>
  using Outcome = std::variant<absl::StatusOr<T>, Wait, Again>;
  // `waiter`: the call, if it has waited.
  Outcome<Taken> Look(const TakeRequest& request, const Waiter* waiter, Cleanup& cleanup) TDOCK_REQUIRES(mu_);
  Outcome<Rows> Look(const FetchRequest& request, const Waiter* waiter, Cleanup& cleanup) TDOCK_REQUIRES(mu_);
  Outcome<Admitted> Look(const PutRequest& request, const Waiter* waiter, Cleanup& cleanup) TDOCK_REQUIRES(mu_);

  template <class V>
  class WaitingCall;
  // Verbs that never wait.
  template <class V>
  ResultOf<V> Do(const typename V::Request& request) TDOCK_EXCLUDES(mu_);
  template <class V>
  void StartWaiting(const AnyCall& call) TDOCK_EXCLUDES(mu_);
  // Looks until the call is answered, or waits without a thread. `waiting` is made when it first waits. `more`: as in
  // Cleanup.
  template <class V>
  void LookUntilItWaits(const AnyCall& call, std::shared_ptr<WaitingCall<V>> waiting, WakeList* more) noexcept
      TDOCK_EXCLUDES(mu_);
  template <class V>
  auto LookOnce(const AnyCall& call, std::shared_ptr<WaitingCall<V>>& waiting, WakeList* more) TDOCK_EXCLUDES(mu_);
  template <class V>
  auto LookOrWait(const AnyCall& call, std::shared_ptr<WaitingCall<V>>& waiting, Cleanup& cleanup) TDOCK_REQUIRES(mu_);
  template <class V>
  void EndWait(WaitingCall<V>& waiting) TDOCK_REQUIRES(mu_);
  absl::Status Fill(const FillRequest& request) TDOCK_EXCLUDES(mu_);
  template <class Request>
  Admitted Admit(const Request& request, std::vector<uint32_t> columns, const Claim& claim) TDOCK_REQUIRES(mu_);
  // The rest of a put that was admitted, or was not: the copy, and publication. Half a publication would be worse than
  // none, so it does not outlive an exception.
  template <class V>
  ResultOf<V> Finish(const typename V::Request& request, absl::StatusOr<Admitted>&& admitted) noexcept
      TDOCK_EXCLUDES(mu_);

  static void WakeAll(WakeList wake, WorkQueue* work);
  // Has a call that blocks its thread look again, if it waits.
  void Wake(Waiter& waiter) TDOCK_EXCLUDES(mu_);
  // Chooses the calls that can be served now, or never can be.
  void ChooseWakes(WakeList& wake) TDOCK_REQUIRES(mu_);
  void WakeTakers(uint32_t consumer, WakeList& wake) TDOCK_REQUIRES(mu_);
  void WakePutters(WakeList& wake) TDOCK_REQUIRES(mu_);
  // Those that a call leaves rows or room to.
  void ChooseOthers(std::optional<uint32_t> consumer, bool puts, WakeList& wake) TDOCK_REQUIRES(mu_);
  // Has one of the calls that wait for a consumer's rows look again when the next lease expires.
  void WatchExpiry(uint32_t consumer, WakeList& wake) TDOCK_REQUIRES(mu_);
  // No more rows are admitted for now.
  bool IsFull() const TDOCK_REQUIRES(mu_);

  // ---- Puts.

  // Text is UTF-8, and no number is NaN where those are refused.
  absl::Status CheckValues(const Batch& batch) const;
  // Which columns of the batch hold bytes that go into columns of text.
  std::vector<size_t> BytesForText(const Batch& batch, std::span<const uint32_t> columns) const TDOCK_REQUIRES(mu_);
  // True if there is room for the claim of a put, which has to wait otherwise.
  absl::StatusOr<bool> Fits(const PutRequest& request, const Waiter* waiter, const Claim& claim) TDOCK_REQUIRES(mu_);
  Budget::Use Use() const TDOCK_REQUIRES(mu_);
  // The number of the consumer that has the lease.
  uint32_t WriterUnder(LeaseId lease) TDOCK_REQUIRES(mu_);
  int64_t BytesOf(CellRef cell) const TDOCK_REQUIRES(mu_);
  // InvalidArgument where one of the columns `for_text` is none, ResourceExhausted where there is no memory.
  absl::Status Write(const Batch& batch, std::span<const size_t> for_text, std::span<BlockStore::Placement> placements)
      TDOCK_EXCLUDES(mu_);
  // Returns the new rows.
  template <class Request>
  std::vector<RowId> Publish(const Request& request, std::span<uint32_t> columns,
                             std::span<BlockStore::Placement> placements) TDOCK_REQUIRES(mu_);

  // ---- Takes.

  // Fills in `awaited.least`, and returns whether that many are takeable.
  absl::StatusOr<bool> AreEnough(const TakeRequest& request, AwaitedRows& awaited) TDOCK_REQUIRES(mu_);
  // What a take hands out; nothing if it has to wait. Fills in `awaited`.
  absl::StatusOr<std::vector<RowId>> ChooseRows(const TakeRequest& request, AwaitedRows& awaited, Cleanup& cleanup)
      TDOCK_REQUIRES(mu_);
  // Drops or sends back those of the rows that are too old for the consumer; true if there are none.
  absl::StatusOr<bool> AreFresh(uint32_t consumer, std::span<const RowId> rows, Cleanup& cleanup) TDOCK_REQUIRES(mu_);
  absl::StatusOr<Taken> HandOut(uint32_t consumer, std::span<const RowId> rows, int32_t rank, Cleanup& cleanup)
      TDOCK_REQUIRES(mu_);
  // Of a cell's block.
  auto VersionOf() const TDOCK_REQUIRES(mu_) {
    return [this](CellRef cell) TDOCK_REQUIRES(mu_) { return store_.BlockOf(cell)->shape().weights_version; };
  }
  // The columns that a consumer is handed: those that it waits for, and the others that have a type.
  std::vector<uint32_t> ColumnsFor(uint32_t consumer) const TDOCK_REQUIRES(mu_);
  std::shared_ptr<const std::vector<ColumnSpec>> SpecOf(uint32_t consumer, std::span<const uint32_t> columns)
      TDOCK_REQUIRES(mu_);
  // Labels and histories of the rows.
  void Describe(std::span<const RowId> rows, Rows::Data& data) TDOCK_REQUIRES(mu_);
  void DescribePieces(RowId row, uint32_t column, Rows::Data& data) TDOCK_REQUIRES(mu_);
  // Partial cells only of the columns that the viewer writes; null: of none.
  Rows::Data View(std::span<const RowId> rows, std::span<const uint32_t> columns, const Consumer* viewer)
      TDOCK_REQUIRES(mu_);
  // The same, or ResourceExhausted if there is no memory for it.
  absl::StatusOr<Rows::Data> TryToView(std::span<const RowId> rows, std::span<const uint32_t> columns,
                                       const Consumer* viewer) TDOCK_REQUIRES(mu_);

  // ---- Images (partition_export.cc).

  // With views of the cells, which can then be copied without the lock.
  absl::StatusOr<PartitionImage> ImageNow() TDOCK_EXCLUDES(mu_);
  PartitionImage::Cells CellsOf(const TableImage::Column& column) const TDOCK_REQUIRES(mu_);
  // The cells as they then lie in the store. ResourceExhausted where there is no memory.
  absl::StatusOr<std::vector<TableImage::Cell>> WriteCells(const PartitionImage::Cells& cells, uint32_t column,
                                                           const std::string& name) TDOCK_EXCLUDES(mu_);
  // The first of these rows of a column, as many as are put together.
  static std::span<const int64_t> FirstToPut(const Column& values, std::span<const int64_t> places);
  // Puts a batch of one column into the store, and returns its first cell.
  absl::StatusOr<CellRef> WriteBatch(const Batch& batch, uint32_t column, int64_t weights_version, uint32_t writer)
      TDOCK_EXCLUDES(mu_);

  // InvalidArgument if the dock was not given the custom sampler that the consumer names.
  absl::Status CheckSamplerThere(const ConsumerOptions& options) const;

  Clock& clock_;
  WorkQueue* const work_;
  WaitingCalls& calls_;
  const BlockSource blocks_;
  const std::shared_ptr<Memory> copies_;
  const std::shared_ptr<const CustomSamplers> samplers_;

  const bool refuses_nan_;
  const bool limited_;

  // What LoadOf returns, as of the last release of the lock.
  std::atomic<int64_t> long_under_way_{0};
  std::atomic<int64_t> rows_{0};
  std::atomic<int64_t> columns_{0};
  std::atomic<int64_t> consumers_{0};
  std::atomic<int64_t> group_size_{1};
  std::atomic<int64_t> next_expiry_ns_{INT64_MAX};

  Mutex mu_;
  bool dropped_ TDOCK_GUARDED_BY(mu_) = false;
  Table table_ TDOCK_GUARDED_BY(mu_);
  BlockStore store_ TDOCK_GUARDED_BY(mu_);
  Writers writers_ TDOCK_GUARDED_BY(mu_);
  Budget budget_ TDOCK_GUARDED_BY(mu_);
  Waits waits_ TDOCK_GUARDED_BY(mu_);
  // How many groups were begun when the claims of the puts that wait were counted.
  uint64_t claims_counted_at_ TDOCK_GUARDED_BY(mu_) = 0;
  // The columns that each consumer was handed last.
  std::vector<std::shared_ptr<const std::vector<ColumnSpec>>> specs_ TDOCK_GUARDED_BY(mu_);
};

template <class V>
ResultOf<V> Partition::Do(const typename V::Request& request) {
  Cleanup cleanup{*this};
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin(cleanup));
  const uint64_t before = table_->changes;
  ResultOf<V> result = On(V(), request, cleanup);
  if (table_->changes == before) return result;
  // These two let no call go on.
  constexpr bool kWakesNone = std::is_same_v<V, verbs::Renew> || std::is_same_v<V, verbs::PublishWeights>;
  kWakesNone ? NoteLoad() : End(cleanup);
  return result;
}

}  // namespace tdock::dock
