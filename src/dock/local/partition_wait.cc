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

// ---- The calls.

// Holds no thread. Looks again on the thread that lets it go on.
template <class V>
class Partition::WaitingCall final : public Waiter, public std::enable_shared_from_this<WaitingCall<V>> {
 public:
  WaitingCall(std::shared_ptr<Partition> partition, const AnyCall& call)
      : partition_(std::move(partition)), call_(call), cancel_(call.request<V>().cancel), alarm_(partition_->clock_) {
    partition_->calls_.Begin();
  }

  // Called once, after its first look and without a lock.
  void WatchCancel() {
    if (cancel_.stop_possible()) cancelled_.emplace(cancel_, LookLater());
  }

  void Wake(WakeList& more) override {
    if (PostIfLong()) return;
    std::shared_ptr<WaitingCall> self = this->shared_from_this();
    partition_->LookUntilItWaits<V>(call_, self, more);
  }

  bool SetAlarm() override {
    if (partition_->work_ == nullptr) return alarm_.Set(this->until, LookLater());
    return alarm_.Set(this->until, [weak = this->weak_from_this()] {
      if (const auto call = weak.lock()) call->LookAtWork();
    });
  }

 private:
  friend class Partition;

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
  std::function<void()> LookLater() {
    return [weak = this->weak_from_this()] {
      if (const auto call = weak.lock()) call->LookNow();
    };
  }
  // For a thread that must not be kept busy.
  void LookAtWork() {
    MutexLock lock(partition_->mu_);
    if (!over_) partition_->work_->Post(partition_.get(), [call = this->shared_from_this()] { call->LookNow(); });
  }

  const std::shared_ptr<Partition> partition_;
  const AnyCall call_;
  const std::stop_token cancel_;
  // Guarded by the partition's lock.
  bool over_ = false;
  Alarm alarm_;
  std::optional<std::stop_callback<std::function<void()>>> cancelled_;
};

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
    if (outcome.index() == 0) waits_.End(*waiting);
    // It may leave units or room to others.
    if (consumer.has_value()) WakeTakers(*consumer, cleanup.wake);
    if (put) WakePutters(cleanup.wake);
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
void Partition::LookUntilItWaits(const AnyCall& call, std::shared_ptr<WaitingCall<V>>& waiting,
                                 WakeList& wake) noexcept {
  for (;;) {
    const bool waited = waiting != nullptr;
    decltype(Look(call.request<V>(), nullptr, std::declval<Cleanup&>())) outcome;
    {
      Cleanup cleanup{*this};
      {
        MutexLock lock(mu_);
        if (waited && waiting->over_) return;
        try {
          outcome = LookOrWait<V>(call, waiting, cleanup);
        } catch (const std::bad_alloc& error) {
          outcome = NoMemory(absl::StrCat("a ", V::kName, " that may wait"), error);
          if (waiting != nullptr) {
            waits_.Leave(*waiting);
            waits_.End(*waiting);
          }
        }
        if (outcome.index() == 0 && waiting != nullptr) {
          waiting->over_ = true;
          waiting->alarm_.Cancel();
        }
      }
      wake.insert(wake.end(), cleanup.wake.begin(), cleanup.wake.end());
      cleanup.wake.clear();
    }
    if (outcome.index() == 0) return Answer<V>(call, std::get<0>(std::move(outcome)), waiting != nullptr);
    if (!waited && waiting != nullptr) waiting->WatchCancel();
    if (std::holds_alternative<Wait>(outcome)) return;
  }
}

template <class V, class Looked>
void Partition::Answer(const AnyCall& call, absl::StatusOr<Looked> looked, bool waited) {
  if constexpr (!std::is_same_v<V, verbs::Put>) {
    call.Reply<V>(std::move(looked));
  } else if (!waited || !looked.ok()) {
    call.Reply<V>(Finish(call.request<V>(), std::move(looked)));
  } else {
    // Whoever lets a put go on need not copy its data.
    const auto admitted = std::make_shared<absl::StatusOr<Looked>>(std::move(looked));
    call.ReplyBy<V>([self = shared_from_this(), put = &call.request<V>(), admitted] {
      return self->Finish(*put, std::move(*admitted));
    });
  }
  if (waited) calls_.End();
}

template <class V>
void Partition::StartWaiting(const AnyCall& call) {
  if constexpr (std::is_same_v<V, verbs::Put>) {
    if (absl::Status status = CheckValues(call.request<V>()); !status.ok()) return call.Reply<V>(status);
  }
  std::shared_ptr<WaitingCall<V>> waiting;
  WakeList wake;
  LookUntilItWaits<V>(call, waiting, wake);
  WakeAll(std::move(wake), work_);
}

template void Partition::StartWaiting<verbs::Put>(const AnyCall& call);
template void Partition::StartWaiting<verbs::Take>(const AnyCall& call);
template void Partition::StartWaiting<verbs::Fetch>(const AnyCall& call);

}  // namespace tdock::dock
