// A mutex and a condition variable whose use Clang's thread-safety analysis checks.
//
// They wrap the standard ones because the analysis does not see through std::mutex, and absl::Mutex makes
// ThreadSanitizer report races that are not there. Wait for a condition with a loop in the function that holds the
// lock: `while (!ready_) clock.Wait(cv_, mu_, deadline);`.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#ifdef __clang__
#define TDOCK_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define TDOCK_THREAD_ANNOTATION(x)
#endif

#define TDOCK_GUARDED_BY(x) TDOCK_THREAD_ANNOTATION(guarded_by(x))
#define TDOCK_REQUIRES(...) TDOCK_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define TDOCK_EXCLUDES(...) TDOCK_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))

namespace tdock {

#ifdef TDOCK_CHECK_LOCKS
// The number of locks that this thread holds; see callback.h.
inline thread_local int locks_held = 0;
#define TDOCK_COUNT_LOCKS(change) (locks_held += (change))
#else
#define TDOCK_COUNT_LOCKS(change) static_cast<void>(0)
#endif

class TDOCK_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() TDOCK_THREAD_ANNOTATION(acquire_capability()) {
    mu_.lock();
    TDOCK_COUNT_LOCKS(1);
  }
  void Unlock() TDOCK_THREAD_ANNOTATION(release_capability()) {
    TDOCK_COUNT_LOCKS(-1);
    mu_.unlock();
  }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class TDOCK_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mu) TDOCK_THREAD_ANNOTATION(acquire_capability(mu)) : mu_(mu) { mu_.Lock(); }
  ~MutexLock() TDOCK_THREAD_ANNOTATION(release_capability()) { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

class CondVar {
 public:
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

  // Releases `mu`, waits for a notification or until `deadline`, and takes `mu` again. May wake spuriously.
  void WaitUntil(Mutex& mu, std::chrono::steady_clock::time_point deadline) TDOCK_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    cv_.wait_until(lock, deadline);
    lock.release();
  }

  void Wait(Mutex& mu) TDOCK_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }

 private:
  std::condition_variable cv_;
};

}  // namespace tdock
