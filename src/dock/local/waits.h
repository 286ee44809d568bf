// The calls that wait for a partition, and the order in which they are woken.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "dock/local/budget.h"
#include "tdock/dock.h"

namespace tdock::dock {

class Waiter;
using WakeList = std::vector<std::shared_ptr<Waiter>>;

// What a take waits for: at least `least` rows or groups, of which it takes up to `max`.
struct AwaitedRows {
  uint32_t consumer = 0;
  int32_t rank = 0;
  int64_t least = 0;
  int64_t max = 0;
};
// What a fetch waits for.
struct AwaitedCell {
  RowId row = 0;
  uint32_t column = 0;
};
// What a put of new rows waits for. The request outlives the wait.
struct AwaitedRoom {
  const PutRequest* request = nullptr;
  Claim claim = {};
};

// Counts the calls that wait, until they are answered. Thread-safe.
class WaitingCalls {
 public:
  void Begin() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    ++count_;
  }
  void End() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (--count_ == 0) none_.NotifyAll();
  }
  void AwaitNone() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (count_ > 0) none_.Wait(mu_);
  }

 private:
  Mutex mu_;
  CondVar none_;
  int64_t count_ TDOCK_GUARDED_BY(mu_) = 0;
};

// A call that waits: it is queued until it is woken or `until` has come; then it checks again whether what it waits for
// is there. Its members are guarded by the partition's lock.
class Waiter {
 public:
  virtual ~Waiter() = default;

  // Has the thread that it blocks check again. False if it blocks none.
  virtual bool WakeThread() = 0;
  // Checks again here, if it blocks no thread, and adds the calls that it wakes in turn to `more`. Called without a
  // lock.
  virtual void Look(WakeList& more) = 0;
  // Has it check again by itself at `until`; called with the lock, while it waits. False if that time has come and it
  // must check again now.
  virtual bool SetAlarm() = 0;

  std::variant<AwaitedRows, AwaitedCell, AwaitedRoom> awaited;
  // When it checks again by itself.
  absl::Time until;
  // It is queued to be woken: false from a wake to its next wait.
  bool waiting = false;

 private:
  friend class Waits;

  uint64_t arrival_ = 0;  // its place among all waiters, from 1 on
  int64_t promised_ = 0;  // the units that it was woken for, until it checks
};

// Not thread-safe. Waiters that are chosen leave their queue and are added to a list, which is woken without the lock.
// A take that is woken is promised what it will take, so that no more are woken than can be served. It must give the
// promise back (Leave) before it checks, and after the check others must be chosen again, whatever the outcome: so no
// wake is lost. Waking or queueing a take costs the logarithm of their number; fetches, and puts that wait for room,
// are searched linearly.
class Waits {
 public:
  // `awaited` and `until` of `waiter` are set.
  void Add(const std::shared_ptr<Waiter>& waiter);
  // It is about to check again: it no longer waits, but a put keeps its place in the queue.
  void Leave(Waiter& waiter);
  // It has left, and does not come back.
  void End(Waiter& waiter);
  void Wake(Waiter& waiter, WakeList& wake);

  // ---- Takes.

  bool AnyTakes(uint32_t consumer) const { return consumer < takes_.size() && takes_[consumer].waiting > 0; }
  void WakeTakes(uint32_t consumer, WakeList& wake);
  // Wakes those that `takeable(rank)` units can serve: those that ask for the fewest first, then in order of arrival.
  void WakeServed(uint32_t consumer, absl::FunctionRef<int64_t(int32_t)> takeable, WakeList& wake);
  // Wakes those that can never be served. If a take is unsatisfiable, so is every take that asks for more.
  void WakeUnsatisfiable(uint32_t consumer, absl::FunctionRef<bool(int32_t rank, int64_t least)> is_unsatisfiable,
                         WakeList& wake);
  // The one of a consumer's takes that checks for all of them whenever a lease expires; null if none waits.
  Waiter* ChooseExpiryWatcher(uint32_t consumer);

  // ---- Fetches.

  size_t fetches() const { return fetches_.size(); }
  void WakeFetches(absl::FunctionRef<bool(const AwaitedCell&)> is_over, WakeList& wake);

  // ---- Puts, in order of arrival, including those that were woken and have not ended.

  bool AnyPuts() const { return !puts_.empty(); }
  size_t puts() const { return puts_.size(); }
  const AwaitedRoom& FirstPut() const { return std::get<AwaitedRoom>(puts_.begin()->second->awaited); }
  // Whether no other put comes before this one; null: one that has not waited yet.
  bool IsFirst(const Waiter* put) const {
    return puts_.empty() || (put != nullptr && puts_.begin()->second.get() == put);
  }
  // `is_over` may update a claim.
  void WakePuts(absl::FunctionRef<bool(AwaitedRoom&, bool first)> is_over, WakeList& wake);

 private:
  // By the least that is asked for, then by arrival.
  using Key = std::pair<int64_t, uint64_t>;
  struct Rank {
    std::map<Key, std::shared_ptr<Waiter>> waiting;
    int64_t promised = 0;
  };
  struct Takes {
    std::map<int32_t, Rank> ranks;
    int64_t waiting = 0;
    Waiter* expiry_watcher = nullptr;
  };

  static Key KeyOf(const Waiter& take) { return {std::get<AwaitedRows>(take.awaited).least, take.arrival_}; }
  void Wake(Takes& takes, Rank& rank, std::map<Key, std::shared_ptr<Waiter>>::iterator it, int64_t promise,
            WakeList& wake);

  uint64_t arrivals_ = 0;
  std::deque<Takes> takes_;  // by consumer
  std::map<uint64_t, std::shared_ptr<Waiter>> fetches_;
  std::map<uint64_t, std::shared_ptr<Waiter>> puts_;
};

}  // namespace tdock::dock
