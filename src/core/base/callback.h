// Code of others, called without locks.
//
// A callback may take any lock, wait for another thread, call back into whoever calls it, and destroy it: called under
// a lock it stops the program for ever, some day. So does a stop request, which runs the callbacks of whoever waits.
// Both are made with what is here. Builds with TDOCK_CHECK_LOCKS, which those with sanitizers are, end with a message
// where a thread holds a Mutex meanwhile; tests/layering_test.py refuses stop requests that are made in any other way.
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
  std::fprintf(stderr, "%s under %d locks, which it may want or wait for: let go of them first\n", what, locks_held);
  std::abort();
#endif
}

// All that share the source's state are asked.
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
