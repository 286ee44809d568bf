#include "kernels/parallel.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include "core/base/mutex.h"

namespace tdock::kernels {
namespace {

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits a little longer each time: at first without leaving the processor, which somebody else may need later.
class Patience {
 public:
  void Wait() {
    if (++waits_ < kShortWaits) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }

 private:
  static constexpr int kShortWaits = 4096;
  int waits_ = 0;
};

// One thread leads: it opens loops, works on them and closes them. The others work on a loop as long as it is open, but
// it does not wait for those that have not come to it.
class Team {
 public:
  explicit Team(int threads) : threads_(threads) {}

  void Run(int64_t count, int64_t grain, LoopBody body) {
    // Several ranges for each thread, so that one which is late gets fewer.
    constexpr int64_t kRangesOfThread = 4;
    const int64_t ranges = threads_ * kRangesOfThread;
    body_ = &body;
    count_ = count;
    range_ = std::max(grain, (count + ranges - 1) / ranges);
    next_.store(0, std::memory_order_relaxed);
    loop_.fetch_add(1);  // open
    TakeRanges();
    loop_.fetch_add(1);  // closed
    for (Patience patience; inside_.load() > 0;) patience.Wait();
    std::exception_ptr failure;
    {
      const MutexLock lock(mu_);
      failure = std::exchange(failure_, nullptr);
    }
    if (failure) std::rethrow_exception(failure);
  }

  // What the other threads do until End().
  void Help() {
    int64_t done = 0;
    Patience patience;
    while (!over_.load(std::memory_order_acquire)) {
      const int64_t loop = loop_.load(std::memory_order_acquire);
      if (loop % 2 == 0 || loop == done) {
        patience.Wait();
        continue;
      }
      // Either the leader sees that this thread is inside, or this thread sees that the loop was closed.
      inside_.fetch_add(1);
      if (loop_.load() == loop) TakeRanges();
      inside_.fetch_sub(1, std::memory_order_release);
      done = loop;
      patience = {};
    }
  }

  void End() { over_.store(true, std::memory_order_release); }

 private:
  void TakeRanges();

  const int threads_;
  alignas(64) std::atomic<int64_t> loop_ = 0;  // odd while one is open
  std::atomic<bool> over_ = false;
  LoopBody* body_ = nullptr;  // of the open loop, as the next two
  int64_t count_ = 0, range_ = 0;
  alignas(64) std::atomic<int64_t> next_ = 0;  // the first number that nobody has taken
  alignas(64) std::atomic<int> inside_ = 0;    // threads that may be working on the open loop, beside the leader
  Mutex mu_;
  std::exception_ptr failure_ TDOCK_GUARDED_BY(mu_);
};

// The team that this thread leads.
thread_local Team* led_team = nullptr;
// This thread is in the body of a team's loop.
thread_local bool in_loop = false;

void Team::TakeRanges() {
  in_loop = true;
  for (;;) {
    const int64_t begin = next_.fetch_add(range_, std::memory_order_relaxed);
    if (begin >= count_) break;
    try {
      (*body_)(begin, std::min(begin + range_, count_));
    } catch (...) {
      const MutexLock lock(mu_);
      if (!failure_) failure_ = std::current_exception();
    }
  }
  in_loop = false;
}

}  // namespace

void ParallelFor(int64_t count, int64_t grain, LoopBody body) {
  if (count <= 0) return;
  if (in_loop || (led_team != nullptr && count <= grain)) {
    body(0, count);
  } else if (led_team != nullptr) {
    led_team->Run(count, grain, body);
  } else {
    at::parallel_for(0, count, grain, body);
  }
}

void WithTeam(Workers& workers, absl::FunctionRef<void()> body) {
  if (workers.threads() == 1 || led_team != nullptr) return body();
  Team team(workers.threads());
  workers.Run(workers.threads(), [&](int thread) {
    if (thread != 0) return team.Help();
    struct Leading {
      explicit Leading(Team& team) { led_team = &team; }
      ~Leading() {
        led_team->End();
        led_team = nullptr;
      }
    };
    const Leading leading(team);
    body();
  });
}

}  // namespace tdock::kernels
