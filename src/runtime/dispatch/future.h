// The result of a call that may still be running.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "runtime/dispatch/convert.h"
#include "runtime/dispatch/method.h"
#include "runtime/dispatch/value.h"
#include "tdock/clock.h"

namespace tdock::runtime {

// A result to come. Copies are of the same one. Thread-safe.
class FutureValue {
 public:
  // By a clock that outlives it.
  explicit FutureValue(Clock& clock) : state_(std::make_shared<State>(clock)) {}

  bool ready() const;
  // Waits until it is ready, which a call is by its deadline at the latest, or until `deadline`: DeadlineExceeded.
  absl::StatusOr<Value> Get(absl::Time deadline = absl::InfiniteFuture()) const;
  // Calls `then` once, without a lock: at once if it is ready, otherwise on the thread that makes it so. It must be
  // brief and not wait.
  void OnReady(std::function<void()> then) const;

  // Makes it ready. Only the first call counts: false for others.
  bool Set(absl::StatusOr<Value> result) const;

 private:
  struct State {
    explicit State(Clock& given) : clock(given) {}

    Clock& clock;
    Mutex mu;
    CondVar changed;
    std::optional<absl::StatusOr<Value>> result TDOCK_GUARDED_BY(mu);
    std::vector<std::function<void()>> then TDOCK_GUARDED_BY(mu);
  };

  std::shared_ptr<State> state_;
};

template <class T>
struct OutcomeOf : std::type_identity<absl::StatusOr<T>> {};
template <>
struct OutcomeOf<void> : std::type_identity<absl::Status> {};
// StatusOr<T>, or Status for void.
template <class T>
using Outcome = typename OutcomeOf<T>::type;

// The same with the type that the controller gets. It can be an argument of another call, which begins when it is
// ready, and to which it passes what it holds: rows of a dock remain in the dock. Thread-safe.
template <class T>
class Future {
 public:
  Future(FutureValue value, RowFetcher fetch) : value_(std::move(value)), fetch_(std::move(fetch)) {}

  bool ready() const { return value_.ready(); }
  // Waits as FutureValue::Get. Of MetaBatch: fetches the rows if they are in a dock, until `deadline`.
  Outcome<T> Get(absl::Time deadline = absl::InfiniteFuture()) const {
    absl::StatusOr<Value> value = value_.Get(deadline);
    if constexpr (std::is_void_v<T>) {
      return value.status();
    } else {
      if (!value.ok()) return value.status();
      return ValueOf<T>::From(*value, {fetch_, deadline});
    }
  }

  // Without its type, and without fetching anything.
  const FutureValue& value() const { return value_; }

 private:
  FutureValue value_;
  RowFetcher fetch_;
};

}  // namespace tdock::runtime
