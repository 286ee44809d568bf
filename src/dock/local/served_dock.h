// What a server needs of the dock inside its process, beyond what its users see.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/base/callback.h"
#include "core/base/work_queue.h"
#include "dock/store/cell_memory.h"
#include "tdock/local_dock.h"

namespace tdock {

// Thread-safe.
class ServedDock : public Dock {
 public:
  template <class T>
  using Done = Callback<void(absl::StatusOr<T>)>;

  // As Take, Put and Fetch, but they hold no thread while they wait: `done` is called exactly once, by whichever thread
  // ends the wait, maybe before the call returns, and without a lock of the dock's: it may call the dock, but for its
  // destructor. That is the thread of another call, of the clock's alarms, of the dock's own, or the one that requests
  // the stop, within that request: a brief `done` keeps nobody waiting. The copying of a put is done there too. What
  // takes long, and alarms, are left to ServedDockOptions::work, if there is any.
  virtual void StartTake(TakeRequest request, Done<Taken> done) = 0;
  virtual void StartPut(PutRequest request, Done<PutResult> done) = 0;
  virtual void StartFetch(FetchRequest request, Done<Rows> done) = 0;

  // Ends leases as if their time were over: deliveries are counted, so that a row that kills its consumers is
  // quarantined. Those that are over already are passed over.
  virtual absl::Status ExpireLeases(absl::string_view partition, std::span<const LeaseId> leases) = 0;
  // Those of the leases that are not over.
  virtual absl::StatusOr<std::vector<LeaseId>> LiveLeases(absl::string_view partition,
                                                          std::span<const LeaseId> leases) = 0;

  // How much there is that a call may have to go through.
  struct Load {
    // To go through so many rows, with all that there is to each, takes long: about a millisecond or more.
    bool IsLong(int64_t many_rows) const { return many_rows > kManyCells / (1 + columns + consumers); }
    static constexpr int64_t kManyCells = int64_t{1} << 14;

    // Something that takes long is under way, or is due: a call may have to wait for it.
    bool busy = false;
    int64_t rows = 0;
    int64_t columns = 0;
    int64_t consumers = 0;
    // The most rows that a group ever had.
    int64_t group_size = 1;
    // That the lease holds; 0 if it is over, or where it would have to be waited for.
    int64_t held_rows = 0;
  };
  // Zeros for a partition that is not there. Brief, whatever is under way.
  virtual Load LoadOf(absl::string_view partition, LeaseId lease = kNoLease) = 0;
  virtual int64_t CountPartitions() = 0;
  // Says that something that takes long is under way, until what it returns goes.
  virtual std::shared_ptr<void> BeginLong(absl::string_view partition) = 0;

  // Where a partition's cells lie. Large columns of a put that lie there already (CellMemory::Holds; values aligned to
  // Buffer::kAlignment, offsets from 0 on) become cells without a copy: nobody may write them again.
  virtual absl::StatusOr<std::shared_ptr<Memory>> MemoryOf(absl::string_view partition) = 0;
};

struct ServedDockOptions {
  LocalDockOptions local = {};
  // Where the cells of a partition lie, whatever their size. Called when one is created, without a lock; maybe in vain
  // where two create it at once. Null, or where it returns null: memory of the dock's own, which is kept warm.
  std::function<std::shared_ptr<CellMemory>(absl::string_view partition)> memory_for = {};
  // Leases are numbered from the next on.
  LeaseId last_lease = kNoLease;
  // Does what takes long, when a call that waits can go on, instead of the thread that lets it; outlives the dock.
  // Null: that thread does it.
  WorkQueue* work = nullptr;
};

// Views outlive it. Its destructor ends the waits with NotFound, and returns when each `done` has; no other call may be
// running then.
std::unique_ptr<ServedDock> MakeServedDock(const ServedDockOptions& options = {});

}  // namespace tdock
