// How calls wait, and whom a change wakes.
#include <algorithm>
#include <new>
#include <stop_token>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/no_memory.h"
#include "core/base/status.h"
#include "dock/local/partition.h"

namespace tdock::dock {

// ---- What to wake.

bool Partition::IsFull() const { return waits_.AnyPuts() && !budget_.FitsRows(waits_.FirstPut().claim, Use()); }

void Partition::WakeTakers(uint32_t consumer, WakeList& wake) {
  if (!waits_.AnyTakes(consumer)) return;
  const Consumer& state = table_->consumer(consumer);
  waits_.WakeServed(
      consumer, [&](int32_t rank) { return state.share(rank).takeable.size(); }, wake);
  if (IsFull()) {
    const auto is_unsatisfiable = [&](int32_t rank, int64_t least) TDOCK_REQUIRES(mu_) {
      return !CheckCanCome(*table_, consumer, rank, least).ok();
    };
    waits_.WakeUnsatisfiable(consumer, is_unsatisfiable, wake);
  }
  WatchExpiry(consumer, wake);
}

void Partition::WatchExpiry(uint32_t consumer, WakeList& wake) {
  Waiter* const expiry_watcher = waits_.ChooseExpiryWatcher(consumer);
  const absl::Time next = table_->leases.NextExpiry();
  if (expiry_watcher == nullptr || expiry_watcher->until <= next) return;
  expiry_watcher->until = next;
  if (!expiry_watcher->SetAlarm()) waits_.Wake(*expiry_watcher, wake);
}

void Partition::WakePutters(WakeList& wake) {
  if (!waits_.AnyPuts()) return;
  // Then all of them fail.
  const bool all = dropped_ || table_->sealed;
  if (budget_.limits_bytes()) blocks_.held->Watch();
  const Budget::Use use = Use();
  const bool any_begun = std::exchange(claims_counted_at_, table_->groups.begun()) != table_->groups.begun();
  const auto is_over = [&](AwaitedRoom& awaited, bool first) TDOCK_REQUIRES(mu_) {
    if (all) return true;
    // Groups that other puts have begun since were admitted as a whole.
    if (any_begun && !awaited.request->groups.empty()) awaited.claim.rows = RowsClaimedBy(*table_, *awaited.request);
    return awaited.claim.rows == 0 || (first && budget_.Fits(awaited.claim, use)) ||
           !CheckNeedsNoCommit(*table_, awaited.claim.rows).ok();
  };
  waits_.WakePuts(is_over, wake);
}

void Partition::ChooseWakes(WakeList& wake) {
  // In a sealed partition every change may lower what a take waits for.
  const bool all = dropped_ || table_->sealed;
  for (uint32_t consumer : table_->registered) {
    all ? waits_.WakeTakes(consumer, wake) : WakeTakers(consumer, wake);
  }
  const auto is_over = [&](const AwaitedCell& awaited)
                           TDOCK_REQUIRES(mu_) { return dropped_ || !table_->Lacks(awaited.row, awaited.column); };
  waits_.WakeFetches(is_over, wake);
  WakePutters(wake);
}

LeaseId Partition::Close() {
  Cleanup cleanup{*this};
  MutexLock lock(mu_);
  dropped_ = true;
  ChooseWakes(cleanup.wake);
  return table_->leases.last();
}

void Partition::BytesWereFreed() {
  Cleanup cleanup{*this};
  MutexLock lock(mu_);
  WakePutters(cleanup.wake);
}

void Partition::Wake(Waiter& waiter) {
  Cleanup cleanup{*this};
  MutexLock lock(mu_);
  waits_.Wake(waiter, cleanup.wake);
}

void Partition::ChooseOthers(std::optional<uint32_t> consumer, bool puts, WakeList& wake) {
  try {
    if (consumer.has_value()) WakeTakers(*consumer, wake);
    if (puts) WakePutters(wake);
  } catch (const std::bad_alloc&) {
    // The call keeps its own result. The others look after the next change, or at their deadlines.
  }
}

// ---- The calls.

// Looks again on its own thread if the call blocks one, otherwise on the thread that lets it go on.
template <class V>
class Partition::WaitingCall final : public Waiter, public std::enable_shared_from_this<WaitingCall<V>> {
 public:
  WaitingCall(std::shared_ptr<Partition> partition, const AnyCall& call)
      : partition_(std::move(partition)), call_(call), cancel_(call.request<V>().cancel), alarm_(partition_->clock_) {
    partition_->calls_.Begin();
  }

  // Called once, after its first look and without a lock.
  void WatchCancel() {
    if (cancel_.stop_possible()) cancelled_.emplace(cancel_, WakeIt{this->weak_from_this()});
  }

  bool WakeThread() override {
    if (call_.blocks()) changed_.NotifyAll();
    return call_.blocks();
  }
  void Look(WakeList& more) override {
    if (!PostIfLong()) partition_->LookUntilItWaits<V>(call_, this->shared_from_this(), &more);
  }

  bool SetAlarm() override {
    if (call_.blocks()) {
      changed_.NotifyAll();  // so that it learns the new deadline
      return true;
    }
    return alarm_.Set(this->until, [weak = this->weak_from_this()] {
      if (const auto call = weak.lock()) call->LookAtWork();
    });
  }

 private:
  friend class Partition;

  struct WakeIt {
    void operator()() const {
      const auto call = waiting.lock();
      if (call == nullptr) return;
      call->call_.blocks() ? call->partition_->Wake(*call) : call->LookNow();
    }
    std::weak_ptr<WaitingCall> waiting;
  };

  bool PostIfLong() {
    WorkQueue* const work = partition_->work_;
    if (work == nullptr || WorkQueue::OnWorker()) return false;
    MutexLock lock(partition_->mu_);
    // Once the call is over, its request, the dock and its work queue may be gone.
    if (over_ || !TakesLong<V>(call_.request<V>(), partition_->LoadNow())) return false;
    work->Post(partition_.get(), [call = this->shared_from_this()] {
      const std::shared_ptr<void> is_long = BeginLong(call->partition_);
      call->LookNow();
    });
    return true;
  }
  void LookNow() { WakeAll({this->shared_from_this()}, partition_->work_); }
  // For the thread of the alarms, which must not be kept busy where there is another.
  void LookAtWork() {
    if (partition_->work_ == nullptr) return LookNow();
    MutexLock lock(partition_->mu_);
    if (!over_) partition_->work_->Post(partition_.get(), [call = this->shared_from_this()] { call->LookNow(); });
  }

  const std::shared_ptr<Partition> partition_;
  const AnyCall call_;
  const std::stop_token cancel_;
  CondVar changed_;
  // Guarded by the partition's lock.
  bool over_ = false;
  Alarm alarm_;
  std::optional<std::stop_callback<WakeIt>> cancelled_;
};

template <class V>
void Partition::EndWait(WaitingCall<V>& waiting) {
  waits_.End(waiting);
  waiting.over_ = true;
  waiting.alarm_.Cancel();
}

template <class V>
auto Partition::LookOrWait(const AnyCall& call, std::shared_ptr<WaitingCall<V>>& waiting, Cleanup& cleanup) {
  const typename V::Request& request = call.request<V>();
  std::optional<uint32_t> consumer;
  bool put = false;
  const auto note = [&](const Waiter& of) {
    if (const auto* const rows = std::get_if<AwaitedRows>(&of.awaited)) consumer = rows->consumer;
    put = std::holds_alternative<AwaitedRoom>(of.awaited);
  };
  const bool waited = waiting != nullptr;
  if (waited) {
    // Leases that have expired since serve the waiting calls in their order, this one still among them.
    if (waiting->waiting) Begin(cleanup).IgnoreError();
    note(*waiting);
    waits_.Leave(*waiting);
  }
  auto outcome = Look(request, waiting.get(), cleanup);
  if (waited) {
    if (outcome.index() == 0) EndWait(*waiting);
    // It may leave units or room to others.
    ChooseOthers(consumer, put, cleanup.wake);
  }
  const Wait* const wait = std::get_if<Wait>(&outcome);
  if (wait == nullptr) return outcome;

  if (!waited) waiting = std::make_shared<WaitingCall<V>>(shared_from_this(), call);
  waiting->awaited = wait->awaited;
  waiting->until = wait->until;
  waits_.Add(waiting);
  const bool is_due = !waiting->SetAlarm();
  if (is_due) waits_.Leave(*waiting);
  note(*waiting);
  if (consumer.has_value()) WatchExpiry(*consumer, cleanup.wake);
  if (put && !waited) {
    // Takes that wait for rows that cannot come must be told.
    for (uint32_t each : table_->registered) WakeTakers(each, cleanup.wake);
  }
  if (is_due) outcome = Again();
  return outcome;
}

template <class V>
auto Partition::LookOnce(const AnyCall& call, std::shared_ptr<WaitingCall<V>>& waiting, WakeList* more) {
  using Result = decltype(Look(call.request<V>(), nullptr, std::declval<Cleanup&>()));
  Cleanup cleanup{*this, more};
  MutexLock lock(mu_);
  if (waiting != nullptr) {
    if (waiting->over_) return Result(Wait());
    while (call.blocks() && waiting->waiting && clock_.Now() < waiting->until) {
      clock_.Wait(waiting->changed_, mu_, waiting->until);
    }
  }
  try {
    return LookOrWait<V>(call, waiting, cleanup);
  } catch (const std::bad_alloc& error) {
    if (waiting != nullptr) {
      waits_.Leave(*waiting);
      EndWait(*waiting);
      const auto* const rows = std::get_if<AwaitedRows>(&waiting->awaited);
      ChooseOthers(rows == nullptr ? std::nullopt : std::optional(rows->consumer),
                   std::holds_alternative<AwaitedRoom>(waiting->awaited), cleanup.wake);
    }
    return Result(NoMemory(absl::StrCat("a ", V::kName, " that may wait"), error));
  }
}

template <class V>
void Partition::LookUntilItWaits(const AnyCall& call, std::shared_ptr<WaitingCall<V>> waiting,
                                 WakeList* more) noexcept {
  for (;;) {
    const bool waited = waiting != nullptr;
    auto outcome = LookOnce<V>(call, waiting, more);
    if (auto* const looked = std::get_if<0>(&outcome)) {
      if constexpr (std::is_same_v<V, verbs::Put>) {
        call.Reply<V>(Finish<V>(call.request<V>(), std::move(*looked)));
      } else {
        call.Reply<V>(std::move(*looked));
      }
      if (waiting != nullptr) calls_.End();
      return;
    }
    if (!waited && waiting != nullptr) waiting->WatchCancel();
    if (!call.blocks() && std::holds_alternative<Wait>(outcome)) return;
  }
}

template <class V>
void Partition::StartWaiting(const AnyCall& call) {
  if constexpr (std::is_same_v<V, verbs::Put>) {
    if (absl::Status status = CheckValues(call.request<V>().batch); !status.ok())
      return call.Reply<V>(std::move(status));
  }
  LookUntilItWaits<V>(call, nullptr, nullptr);
}

template void Partition::StartWaiting<verbs::Put>(const AnyCall& call);
template void Partition::StartWaiting<verbs::Take>(const AnyCall& call);
template void Partition::StartWaiting<verbs::Fetch>(const AnyCall& call);

}  // namespace tdock::dock
