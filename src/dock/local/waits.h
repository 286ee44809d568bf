// The calls that wait for something of a partition's, and in which order they are woken.
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
#include "dock/local/budget.h"
#include "tdock/dock.h"

namespace tdock {

class Waiter;
using WakeList = std::vector<std::shared_ptr<Waiter>>;

// A take of `least` rows or groups or more, of which it takes up to `max`.
struct AwaitedRows {
  uint32_t consumer = 0;
  int32_t rank = 0;
  int64_t least = 0;
  int64_t max = 0;
};
// A fetch.
struct AwaitedCell {
  RowId row = 0;
  uint32_t column = 0;
};
// A put of new rows. The request outlives the wait.
struct AwaitedRoom {
  const PutRequest* request = nullptr;
  Claim claim = {};
};

// A call that waits. It looks whether what it waits for is there; if not, it is queued with what it awaits, until it is
// woken or its time has come; then it looks again. What is here is guarded by the partition's lock.
class Waiter {
 public:
  virtual ~Waiter() = default;

  // Lets it look again. Called without a lock, after it has left its queue; adds those that it wakes in turn to `more`.
  virtual void Wake(WakeList& more) = 0;
  // Has it look again by itself at `until`; called with the lock, while it waits. False if that time has come.
  virtual bool SetAlarm() = 0;

  std::variant<AwaitedRows, AwaitedCell, AwaitedRoom> awaited;
  // When it looks again by itself.
  absl::Time until;
  // Waits to be woken: not so before its first wait, and from a wake to its next wait.
  bool waiting = false;
  bool has_waited() const { return arrival_ != 0; }

 private:
  friend class Waits;

  uint64_t arrival_ = 0;  // its place among all waiters; 0 before its first wait
  int64_t promised_ = 0;  // the units that it was woken for, until it looks
};

// Not thread-safe. Waiters that are chosen to be woken leave their queue, and are added to a list that is gone through
// without the lock. A take that is woken is promised what it will take, so that as many are woken as can be served; it
// is to give that back (Leave) before it looks, and others are to be chosen anew after it has looked, whatever became
// of it: so no wake is lost. Costs the logarithm of the waiters for each that is woken or queued; fetches, and puts
// that wait for room, are gone through.
class Waits {
 public:
  // `awaited` and `until` of `waiter` are set.
  void Add(std::shared_ptr<Waiter> waiter);
  // It is about to look again: it waits no more, but a put keeps its turn.
  void Leave(Waiter& waiter);
  // It has left, and does not come back.
  void End(Waiter& waiter);
  void Wake(Waiter& waiter, WakeList& wake);

  // ---- Takes.

  bool AnyTakes(uint32_t consumer) const { return consumer < takes_.size() && takes_[consumer].waiting > 0; }
  void WakeTakes(uint32_t consumer, WakeList& wake);
  // Those that can be served, `takeable(rank)` units being there: those that ask for least before others, then those
  // that came first.
  void WakeServed(uint32_t consumer, absl::FunctionRef<int64_t(int32_t)> takeable, WakeList& wake);
  // Those that ask for too much: if a take is unsatisfiable, so is every take that asks for more.
  void WakeUnsatisfiable(uint32_t consumer, absl::FunctionRef<bool(int32_t rank, int64_t least)> is_unsatisfiable,
                         WakeList& wake);
  // The one of a consumer's takes that looks whenever a lease ends, for all of them; null if there is none.
  Waiter* expiry_watcher(uint32_t consumer) const {
    return AnyTakes(consumer) ? takes_[consumer].expiry_watcher : nullptr;
  }
  // Makes one of those that wait the expiry watcher, if there is any, and returns it.
  Waiter* ChooseExpiryWatcher(uint32_t consumer);

  // ---- Fetches.

  size_t fetches() const { return fetches_.size(); }
  void WakeFetches(absl::FunctionRef<bool(const AwaitedCell&)> is_over, WakeList& wake);

  // ---- Puts, in the order in which they came; those included that were woken and have not ended.

  bool AnyPuts() const { return !puts_.empty(); }
  size_t puts() const { return puts_.size(); }
  const AwaitedRoom& FirstPut() const { return std::get<AwaitedRoom>(puts_.begin()->second->awaited); }
  // Whether no other put comes before this one, which may be null: one that has not waited yet.
  bool IsFirst(const Waiter* put) const {
    return puts_.empty() || (put != nullptr && puts_.begin()->second.get() == put);
  }
  // `is_over` may count a claim anew.
  void WakePuts(absl::FunctionRef<bool(AwaitedRoom&, bool first)> is_over, WakeList& wake);

 private:
  // By what is asked for at least, and arrival.
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

}  // namespace tdock
