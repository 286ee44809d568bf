// Wakes one worker thread, from anywhere.
#pragma once

#include "core/base/mutex.h"

namespace tdock {

// Thread-safe.
class Notifier {
 public:
  // Never fails, never blocks for long, and may be called with any lock held.
  void Notify() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    notified_ = true;
    changed_.NotifyOne();
  }
  // Ends the worker's loop.
  void Close() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    closed_ = true;
    changed_.NotifyOne();
  }
  // Blocks until Notify is called, unless it was since the last Await; false once it is closed. For one thread.
  bool Await() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (!notified_ && !closed_) changed_.Wait(mu_);
    notified_ = false;
    return !closed_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool notified_ TDOCK_GUARDED_BY(mu_) = false;
  bool closed_ TDOCK_GUARDED_BY(mu_) = false;
};

}  // namespace tdock
