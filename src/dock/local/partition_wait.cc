// How calls wait: with a thread, and without one.
#include <algorithm>
#include <stop_token>
#include <type_traits>
#include <utility>

#include "core/base/status.h"
#include "dock/local/partition.h"

namespace tdock::dock {

// ---- What to wake.

bool Partition::IsFull() const { return waits_.AnyPuts() && !budget_.FitsRows(waits_.FirstPut().claim, Use()); }

void Partition::WakeTakers(uint32_t consumer, WakeList& wake) {
  if (!waits_.AnyTakes(consumer)) return;
  const Consumer& state = table_.consumer(consumer);
  waits_.WakeServed(
      consumer, [&](int32_t rank) { return state.share(rank).takeable.size(); }, wake);
  if (IsFull()) {
    const auto is_unsatisfiable = [&](int32_t rank, int64_t least)
                                      TDOCK_REQUIRES(mu_) { return !table_.CheckCanCome(consumer, rank, least).ok(); };
    waits_.WakeUnsatisfiable(consumer, is_unsatisfiable, wake);
  }
  WatchExpiry(consumer, wake);
}

void Partition::WatchExpiry(uint32_t consumer, WakeList& wake) {
  Waiter* const expiry_watcher = waits_.ChooseExpiryWatcher(consumer);
  const absl::Time next = table_.leases().NextExpiry();
  if (expiry_watcher == nullptr || expiry_watcher->until <= next) return;
  expiry_watcher->until = next;
  if (!expiry_watcher->SetAlarm()) waits_.Wake(*expiry_watcher, wake);
}

void Partition::WakePutters(WakeList& wake) {
  if (!waits_.AnyPuts()) return;
  // Then all of them fail.
  const bool all = dropped_ || table_.sealed();
  if (budget_.limits_bytes()) blocks_.held->Watch();
  const Budget::Use use = Use();
  const bool any_begun = std::exchange(claims_counted_at_, table_.groups_begun()) != table_.groups_begun();
  const auto is_over = [&](AwaitedRoom& awaited, bool first) TDOCK_REQUIRES(mu_) {
    if (all) return true;
    // Groups that other puts have begun since were admitted as a whole.
    if (any_begun && !awaited.request->groups.empty()) awaited.claim.rows = table_.RowsClaimedBy(*awaited.request);
    return awaited.claim.rows == 0 || (first && budget_.Fits(awaited.claim, use)) ||
           !table_.CheckNeedsNoCommit(awaited.claim.rows).ok();
  };
  waits_.WakePuts(is_over, wake);
}

void Partition::ChooseWakes(WakeList& wake) {
  // In a sealed partition every change may lower what a take waits for.
  const bool all = dropped_ || table_.sealed();
  for (uint32_t consumer : table_.consumers()) {
    all ? waits_.WakeTakes(consumer, wake) : WakeTakers(consumer, wake);
  }
  const auto is_over = [&](const AwaitedCell& awaited)
                           TDOCK_REQUIRES(mu_) { return dropped_ || !table_.Lacks(awaited.row, awaited.column); };
  waits_.WakeFetches(is_over, wake);
  WakePutters(wake);
}

LeaseId Partition::Close() {
  Cleanup cleanup{*this};
  MutexLock lock(mu_);
  dropped_ = true;
  ChooseWakes(cleanup.wake);
  return table_.leases().last();
}

void Partition::BytesWereFreed() {
  Cleanup cleanup{*this};
  MutexLock lock(mu_);
  WakePutters(cleanup.wake);
}

bool Partition::TakesLong(const TakeRequest& request) const {
  return LoadNow().IsLongTake(static_cast<int64_t>(request.rows.size()), request.max);
}

bool Partition::TakesLong(const FetchRequest& request) const {
  return ServedDock::Load::IsLongFetch(static_cast<int64_t>(request.rows.size()),
                                       static_cast<int64_t>(request.columns.size()));
}

bool Partition::TakesLong(const PutRequest& request) const {
  return LoadNow().IsLongPut(Table::RowsOf(request), static_cast<int64_t>(request.batch.columns().size()));
}

// ---- One check.

template <class Request, class W>
auto Partition::LookOrWait(const Request& request, std::shared_ptr<W>& waiter, Cleanup& cleanup) {
  std::optional<uint32_t> consumer;
  bool put = false;
  const auto note = [&](const Waiter& of) {
    if (const auto* const rows = std::get_if<AwaitedRows>(&of.awaited)) consumer = rows->consumer;
    put = std::holds_alternative<AwaitedRoom>(of.awaited);
  };
  const bool waited = waiter != nullptr && waiter->has_waited();
  if (waited) {
    // Leases that have expired since serve the waiting calls in their order, this one still among them.
    if (waiter->waiting) Begin(cleanup).IgnoreError();
    note(*waiter);
    waits_.Leave(*waiter);
  }
  Wait wait;
  auto result = Look(request, waiter.get(), wait, cleanup);
  if (waited) {
    if (result.has_value()) waits_.End(*waiter);
    // It may leave units or room to others.
    if (consumer.has_value()) WakeTakers(*consumer, cleanup.wake);
    if (put) WakePutters(cleanup.wake);
  }
  if (result.has_value() || wait.until == absl::InfinitePast()) return result;

  if constexpr (std::is_default_constructible_v<W>) {
    if (waiter == nullptr) waiter = std::make_shared<W>();
  }
  waiter->awaited = wait.awaited;
  waiter->until = wait.until;
  waits_.Add(waiter);
  if (!waiter->SetAlarm()) waits_.Leave(*waiter);
  note(*waiter);
  if (consumer.has_value()) WatchExpiry(*consumer, cleanup.wake);
  if (put && !waited) {
    // Takes that wait for rows that cannot come must be told.
    for (uint32_t each : table_.consumers()) WakeTakers(each, cleanup.wake);
  }
  return result;
}

// ---- Calls that block their thread.

class Partition::ThreadWaiter final : public Waiter {
 public:
  void Wake(WakeList&) override { changed.NotifyAll(); }
  bool SetAlarm() override {
    changed.NotifyAll();  // so that it learns the new deadline
    return true;
  }
  CondVar changed;
};

template <class Request>
auto Partition::Await(const Request& request) {
  std::shared_ptr<ThreadWaiter> waiter;  // guarded by mu_
  // Outlives the lock: its destructor waits for a running callback, which waits for the lock.
  const std::stop_callback cancelled(request.cancel, [&] {
    Cleanup cleanup{*this};
    MutexLock lock(mu_);
    if (waiter != nullptr) waits_.Wake(*waiter, cleanup.wake);
  });
  for (;;) {
    Cleanup cleanup{*this};
    MutexLock lock(mu_);
    while (waiter != nullptr && waiter->waiting && clock_.Now() < waiter->until) {
      clock_.Wait(waiter->changed, mu_, waiter->until);
    }
    auto result = LookOrWait(request, waiter, cleanup);
    if (result.has_value()) return *std::move(result);
  }
}

absl::StatusOr<Taken> Partition::Take(const TakeRequest& request) { return Await(request); }
absl::StatusOr<Rows> Partition::Fetch(const FetchRequest& request) { return Await(request); }

absl::StatusOr<PutResult> Partition::Put(const PutRequest& request) {
  TDOCK_RETURN_IF_ERROR(CheckValues(request));
  if (!NeedsRoom(request)) return PutAdmitted(request, Claim());
  TDOCK_ASSIGN_OR_RETURN(const Claim claim, Await(request));
  return PutAdmitted(request, claim);
}

// ---- Calls that hold no thread.

template <class Request, class T>
class Partition::Call final : public Waiter, public std::enable_shared_from_this<Call<Request, T>> {
 public:
  Call(std::shared_ptr<Partition> partition, Request request, Done<T> done)
      : partition_(std::move(partition)),
        request_(std::move(request)),
        done_(std::move(done)),
        alarm_(partition_->clock_) {}

  void Start() {
    if (request_.cancel.stop_possible()) cancelled_.emplace(request_.cancel, CallLater());
    LookNow();
  }

  void Wake(WakeList& more) override {
    WorkQueue* const work = partition_->work_;
    if (work != nullptr && !WorkQueue::OnWorker() && partition_->TakesLong(request_)) {
      work->Post(partition_.get(), [call = this->shared_from_this()] {
        const std::shared_ptr<void> is_long = BeginLong(call->partition_);
        call->LookNow();
      });
      return;
    }
    bool again = true;
    while (again) {
      auto result = LookOnce(more, again);
      if (result.has_value()) Finish(*std::move(result));
    }
  }

  bool SetAlarm() override {
    if (partition_->work_ == nullptr) return alarm_.Set(this->until, CallLater());
    return alarm_.Set(this->until, [weak = this->weak_from_this()] {
      if (const auto call = weak.lock()) call->LookAtWork();
    });
  }

 private:
  void LookNow() { WakeAll({this->shared_from_this()}, partition_->work_); }

  // Has the call check again, unless it is over.
  std::function<void()> CallLater() {
    return [weak = this->weak_from_this()] {
      if (const auto call = weak.lock()) call->LookNow();
    };
  }
  // The same, for a thread that must not be kept busy.
  void LookAtWork() {
    MutexLock lock(partition_->mu_);
    // A caller whose call is over does not wait for this: the dock and its work queue may be gone.
    if (!over_) partition_->work_->Post(partition_.get(), [call = this->shared_from_this()] { call->LookNow(); });
  }

  auto LookOnce(WakeList& more, bool& again) {
    Partition& partition = *partition_;
    auto self = this->shared_from_this();
    Cleanup cleanup{partition};
    decltype(partition.LookOrWait(request_, self, cleanup)) result;
    {
      MutexLock lock(partition.mu_);
      again = false;
      if (over_) return result;
      result = partition.LookOrWait(request_, self, cleanup);
      over_ = result.has_value();
      if (over_) alarm_.Cancel();
      again = !over_ && !this->waiting;
    }
    more.insert(more.end(), cleanup.wake.begin(), cleanup.wake.end());
    cleanup.wake.clear();
    return result;
  }

  template <class Result>
  void Finish(absl::StatusOr<Result> result) {
    // The callback may release what `done` owns.
    const Done<T> done = std::move(done_);
    if constexpr (std::is_same_v<Result, Claim>) {
      done(result.ok() ? partition_->PutAdmitted(request_, *result) : absl::StatusOr<T>(result.status()));
    } else {
      done(std::move(result));
    }
  }

  const std::shared_ptr<Partition> partition_;
  const Request request_;
  Done<T> done_;
  // Guarded by the partition's lock.
  bool over_ = false;
  Alarm alarm_;
  std::optional<std::stop_callback<std::function<void()>>> cancelled_;
};

void Partition::Start(std::shared_ptr<Partition> partition, const TakeRequest& request, Done<Taken> done) {
  std::make_shared<Call<TakeRequest, Taken>>(std::move(partition), request, std::move(done))->Start();
}

void Partition::Start(std::shared_ptr<Partition> partition, const FetchRequest& request, Done<Rows> done) {
  std::make_shared<Call<FetchRequest, Rows>>(std::move(partition), request, std::move(done))->Start();
}

void Partition::Start(std::shared_ptr<Partition> partition, const PutRequest& request, Done<PutResult> done) {
  if (absl::Status status = partition->CheckValues(request); !status.ok()) return done(status);
  if (!partition->NeedsRoom(request)) return done(partition->PutAdmitted(request, Claim()));
  std::make_shared<Call<PutRequest, PutResult>>(std::move(partition), request, std::move(done))->Start();
}

}  // namespace tdock::dock
