// A few threads that divide numbered pieces of work.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "core/base/mutex.h"

namespace tdock {

// Thread-safe: threads that call Run() at the same time have their turns, in the order of their calls. It must not be
// called from inside a piece of work.
class Workers {
 public:
  // The caller of Run() is one of the `threads` ≥ 1. Each of the others calls `at_start` first, if it is given.
  explicit Workers(int threads, std::function<void()> at_start = {});
  // Waits only for the threads to end: no work is running.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int threads() const { return static_cast<int>(others_.size()) + 1; }

  // Calls body(0) … body(pieces - 1) and returns when all have ended. Piece i runs on thread i modulo threads(), after
  // the pieces before it on that thread, so which pieces share a thread never depends on timing. If pieces throw, the
  // exception of the lowest-numbered one is rethrown, and later pieces of the same thread are skipped.
  void Run(int pieces, const std::function<void(int)>& body) TDOCK_EXCLUDES(mu_);

 private:
  void Serve(int thread) TDOCK_EXCLUDES(mu_);
  void RunShare(int thread, int pieces, const std::function<void(int)>& body);

  const std::function<void()> at_start_;
  Mutex mu_;
  CondVar changed_;
  const std::function<void(int)>* body_ TDOCK_GUARDED_BY(mu_) = nullptr;
  int pieces_ TDOCK_GUARDED_BY(mu_) = 0;
  uint64_t calls_ TDOCK_GUARDED_BY(mu_) = 0;   // of Run()
  uint64_t served_ TDOCK_GUARDED_BY(mu_) = 0;  // of them, those that have returned
  int generation_ TDOCK_GUARDED_BY(mu_) = 0;   // counts the calls of Run()
  int running_ TDOCK_GUARDED_BY(mu_) = 0;      // threads that have not ended their share
  bool stopping_ TDOCK_GUARDED_BY(mu_) = false;
  std::exception_ptr failure_ TDOCK_GUARDED_BY(mu_);
  int failed_piece_ TDOCK_GUARDED_BY(mu_) = 0;
  std::vector<std::thread> others_;
};

}  // namespace tdock
