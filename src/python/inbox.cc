#include "python/inbox.h"

#include <chrono>
#include <functional>
#include <utility>

#include "absl/time/clock.h"

namespace tdock::python {

using runtime::FutureValue;
using runtime::Value;

FutureValue Inbox::Push(std::string method, std::vector<Value> arguments, absl::Time deadline) {
  FutureValue answer(Clock::Real());
  absl::Status closed;
  {
    const std::lock_guard lock(mu_);
    if (closed_.has_value()) {
      closed = *closed_;
    } else {
      open_.emplace(next_id_, answer);
      waiting_.push_back({next_id_++, std::move(method), std::move(arguments), deadline});
      changed_.notify_all();
    }
  }
  if (!closed.ok()) answer.Set(closed);
  return answer;
}

absl::StatusOr<std::optional<Inbox::Call>> Inbox::Next(absl::Time until) {
  for (;;) {
    Call call;
    {
      std::unique_lock lock(mu_);
      const absl::Duration left = until - absl::Now();
      const auto ready = [&] { return closed_.has_value() || !waiting_.empty(); };
      if (!changed_.wait_for(lock, absl::ToChronoNanoseconds(left), ready)) {
        return absl::DeadlineExceededError("no call");
      }
      if (closed_.has_value()) return std::optional<Call>();
      call = std::move(waiting_.front());
      waiting_.pop_front();
    }
    if (absl::Now() < call.deadline) return std::optional<Call>(std::move(call));
    Answer(call.id, absl::DeadlineExceededError("its time was over before its turn; the worker had earlier calls"));
  }
}

void Inbox::Answer(int64_t id, absl::StatusOr<Value> answer) {
  std::optional<FutureValue> future;
  {
    const std::lock_guard lock(mu_);
    const auto found = open_.find(id);
    if (found == open_.end()) return;
    future = found->second;
    open_.erase(found);
  }
  future->Set(std::move(answer));
}

bool Inbox::AwaitClosed(absl::Time until) {
  std::unique_lock lock(mu_);
  return changed_.wait_for(lock, absl::ToChronoNanoseconds(until - absl::Now()), [&] { return closed_.has_value(); });
}

void Inbox::Close(const absl::Status& why) {
  std::map<int64_t, FutureValue> open;
  {
    const std::lock_guard lock(mu_);
    if (closed_.has_value()) return;
    closed_ = why;
    open.swap(open_);
    waiting_.clear();
    changed_.notify_all();
  }
  for (const auto& [id, future] : open) future.Set(why);
}

void InboxLink::Invoke(std::string method, std::vector<Value> arguments, absl::Time deadline,
                       std::function<void(absl::StatusOr<Value>)> done) {
  const FutureValue answer = inbox_->Push(std::move(method), std::move(arguments), deadline);
  answer.OnReady([answer, done = std::move(done)] { done(answer.Get()); });
}

}  // namespace tdock::python
