// Calling foreign code without locks.
//
// A callback may take any lock, wait for another thread, call back into its caller, and destroy it: called under a
// lock, it will deadlock some day. The same holds for a stop request, which runs the callbacks of those who wait. Make
// both with the functions here. Builds with TDOCK_CHECK_LOCKS, as those with sanitizers are, abort with a message if
// the thread holds a Mutex; tests/layering_test.py refuses stop requests made in any other way.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stop_token>
#include <type_traits>
#include <utility>

#include "core/base/mutex.h"

namespace tdock {

inline void CheckNoLockHeld([[maybe_unused]] const char* what) {
#ifdef TDOCK_CHECK_LOCKS
  if (locks_held == 0) return;
  std::fprintf(stderr, "%s while holding %d locks, which it may need or wait for: release them first\n", what,
               locks_held);
  std::abort();
#endif
}

// Requests a stop of everyone who shares the source's state.
inline void RequestStop(std::stop_source source) {
  CheckNoLockHeld("a stop request");
  source.request_stop();
}

// A std::function that is called with no lock held.
template <class Signature>
class Callback;

template <class Result, class... Arguments>
class Callback<Result(Arguments...)> {
 public:
  Callback() = default;
  Callback(std::nullptr_t) {}
  template <class Function>
    requires(!std::is_same_v<std::remove_cvref_t<Function>, Callback> &&
             std::is_invocable_r_v<Result, Function&, Arguments...>)
  Callback(Function&& function) : function_(std::forward<Function>(function)) {}

  explicit operator bool() const { return static_cast<bool>(function_); }
  Result operator()(Arguments... arguments) const {
    CheckNoLockHeld("a callback");
    return function_(std::forward<Arguments>(arguments)...);
  }

 private:
  std::function<Result(Arguments...)> function_;
};

}  // namespace tdock
