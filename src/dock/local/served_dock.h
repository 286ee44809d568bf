// What a server needs from the dock in its process, beyond the public interface.
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/callback.h"
#include "core/base/work_queue.h"
#include "dock/store/cell_memory.h"
#include "tdock/local_dock.h"
#include "tdock/verbs.h"

namespace tdock::dock {

// Thread-safe.
class ServedDock : public Dock {
 public:
  template <class T>
  using Done = Callback<void(absl::StatusOr<T>)>;

  // As Take, Put and Fetch, but without blocking a thread: `done` is called exactly once, by the thread that ends the
  // wait, possibly before the call returns, and without a lock of the dock. It may call the dock, but not destroy it.
  // The thread may be that of another call, of the clock's alarms or of the dock, or the one that requests the stop, so
  // `done` must be brief. A put copies its data on that thread, too. Long work, and alarms, go to
  // ServedDockOptions::work if that is set.
  void StartTake(TakeRequest request, Done<Taken> done) {
    Start(AnyCall::Owned<verbs::Take>(std::move(request), std::move(done)));
  }
  void StartPut(PutRequest request, Done<PutResult> done) {
    Start(AnyCall::Owned<verbs::Put>(std::move(request), std::move(done)));
  }
  void StartFetch(FetchRequest request, Done<Rows> done) {
    Start(AnyCall::Owned<verbs::Fetch>(std::move(request), std::move(done)));
  }

  // Expires leases: deliveries are counted, so that a row that crashes its consumers is quarantined. Leases that are
  // over are ignored.
  virtual absl::Status ExpireLeases(absl::string_view partition, std::span<const LeaseId> leases) = 0;
  // Those of the leases that are still live.
  virtual absl::StatusOr<std::vector<LeaseId>> LiveLeases(absl::string_view partition,
                                                          std::span<const LeaseId> leases) = 0;

  // How much data a call may have to go through.
  struct Load {
    // Whether it takes long, about a millisecond or more, to process this many rows with everything attached to them.
    bool IsLong(int64_t many_rows) const { return many_rows > kManyCells / (1 + columns + consumers); }
    static constexpr int64_t kManyCells = int64_t{1} << 14;

    // Long work is in progress or due, so a call may have to wait for it.
    bool busy = false;
    // There is so little memory left that a call that frees cells first copies the others together, however many they
    // are: the next call needs the room.
    bool scarce = false;
    int64_t rows = 0;
    int64_t columns = 0;
    int64_t consumers = 0;
    // The largest group so far.
    int64_t group_size = 1;
    // The rows that the lease holds; 0 if it is over, or if finding out would take a wait.
    int64_t held_rows = 0;
  };
  // Zeros for a partition that does not exist. Fast, whatever is in progress.
  virtual Load LoadOf(absl::string_view partition, LeaseId lease = kNoLease) = 0;
  virtual int64_t CountPartitions() = 0;
  // Marks long work as in progress until the result is destroyed.
  virtual std::shared_ptr<void> BeginLong(absl::string_view partition) = 0;

  // The memory of a partition's cells. Large columns of a put that are already there (CellMemory::Holds; values aligned
  // to Buffer::kAlignment, offsets starting at 0) become cells without a copy: they must never be written again.
  virtual absl::StatusOr<std::shared_ptr<Memory>> MemoryOf(absl::string_view partition) = 0;
};

// True if a call may take a millisecond or more of processor time: it accesses many rows or columns, or all of a large
// table. `load` is the partition's, including that of the request's lease.
template <class V>
bool TakesLong(const typename V::Request& request, const ServedDock::Load& load) {
  constexpr int64_t kManyColumns = 128, kManyKeys = 1024, kManyRanks = 1024, kManyBytes = 1 << 20;
  const auto is = []<class... Verbs>() { return (std::is_same_v<V, Verbs> || ...); };
  if constexpr (is.template operator()<verbs::Put, verbs::Fill>()) {
    int64_t rows = request.batch.rows(), bytes = 0;
    if constexpr (requires { request.new_rows; }) rows = std::max(rows, request.new_rows);
    if constexpr (requires { request.rows; }) rows = std::max(rows, std::ssize(request.rows));
    for (const NamedColumn& column : request.batch.columns()) bytes += column.column.payload_bytes();
    return load.IsLong(rows) || std::ssize(request.batch.columns()) > kManyColumns || bytes > kManyBytes;
  } else if constexpr (is.template operator()<verbs::Take>()) {
    const int64_t units = std::min(request.max, load.rows);
    return load.IsLong(request.rows.empty() ? std::min(units * load.group_size, load.rows) : std::ssize(request.rows));
  } else if constexpr (is.template operator()<verbs::Fetch>()) {
    return std::ssize(request.rows) * (1 + std::ssize(request.columns)) > ServedDock::Load::kManyCells;
  } else if constexpr (is.template operator()<verbs::Complete, verbs::Release, verbs::Drop>()) {
    return load.IsLong(request.rows.empty() ? load.held_rows : std::ssize(request.rows));
  } else if constexpr (is.template operator()<verbs::ImportPartition>()) {
    return true;
  } else if constexpr (is.template operator()<verbs::FindRows>()) {
    return std::ssize(request.keys) > kManyKeys;
  } else if constexpr (is.template operator()<verbs::CreatePartition>()) {
    return std::ssize(request.columns) > kManyColumns;
  } else if constexpr (is.template operator()<verbs::RegisterConsumer>()) {
    const ConsumerOptions& options = request.options;
    const auto names = std::ssize(options.reads) + std::ssize(options.reads_optional) + std::ssize(options.writes);
    return load.IsLong(load.rows) || names > kManyColumns || options.ranks > kManyRanks;
  } else if constexpr (is.template operator()<verbs::GetStatus, verbs::GetRowStatus>()) {
    return load.columns + load.consumers > kManyColumns;
  } else if constexpr (is.template operator()<verbs::Renew, verbs::PublishWeights, verbs::GetConsumerStatus>()) {
    return false;
  } else {
    // They access whole tables.
    return load.IsLong(load.rows) || load.columns + load.consumers > kManyColumns;
  }
}

struct ServedDockOptions {
  LocalDockOptions local = {};
  // Allocates the cells of a partition, whatever their size. Called without a lock when a partition is created; unused
  // if two calls create it at once. Null, or if it returns null: the dock's own memory, which caches what is freed.
  std::function<std::shared_ptr<CellMemory>(absl::string_view partition)> memory_for = {};
  // Leases are numbered from the next number on.
  LeaseId last_lease = kNoLease;
  // Runs the long part of waiting calls once they can go on; must outlive the dock. Null: it runs on the thread that
  // lets them go on.
  WorkQueue* work = nullptr;
};

// Views outlive it. Its destructor ends the waits with NotFound, and returns once every `done` has returned; no other
// call may be running then.
std::unique_ptr<ServedDock> MakeServedDock(const ServedDockOptions& options = {});

}  // namespace tdock::dock
