// Watches the stages that a run carries out in its own thread, which cannot say that it hangs in one of them.
// StageThreads watches those that have threads of their own.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"

namespace tdock::trainer {

class StageWatch {
 public:
  struct Options {
    Clock& clock;
    // How long a stage may work without a sign of progress; infinite: nothing is watched.
    absl::Duration patience = absl::InfiniteDuration();
    // Called with the error, by a thread of its own, if a stage that hangs has not come back after `grace`. Nothing
    // that the stage uses may be destroyed while it goes on: a program has to end itself.
    std::function<void(const absl::Status&)> give_up = [](const absl::Status&) {};
    absl::Duration grace = absl::Seconds(30);
  };

  explicit StageWatch(Options options) : options_(std::move(options)) {}
  ~StageWatch();
  StageWatch(const StageWatch&) = delete;
  StageWatch& operator=(const StageWatch&) = delete;

  // What `work` returns, an absl::Status or a StatusOr, which must not throw. DeadlineExceeded, with the name of the
  // stage and its rows, if it has hung, whatever it returns when it comes back. By one thread at a time.
  template <class Work>
  auto Run(const std::string& stage, const std::string& rows, const Work& work) -> decltype(work()) {
    Begin(stage, rows);
    auto result = work();
    if (absl::Status hung = End(); !hung.ok()) return hung;
    return result;
  }
  // The stage is getting on. Thread-safe.
  void Progress() TDOCK_EXCLUDES(mu_);

 private:
  void Begin(const std::string& stage, const std::string& rows) TDOCK_EXCLUDES(mu_);
  // The error, if the stage has hung.
  absl::Status End() TDOCK_EXCLUDES(mu_);
  void Watch() TDOCK_EXCLUDES(mu_);
  // Notes that the stage hangs, and returns the error once it must be given up.
  absl::Status Look() TDOCK_REQUIRES(mu_);

  const Options options_;
  Mutex mu_;
  CondVar changed_;
  bool works_ TDOCK_GUARDED_BY(mu_) = false;
  std::string stage_ TDOCK_GUARDED_BY(mu_);
  std::string rows_ TDOCK_GUARDED_BY(mu_);
  absl::Time progress_ TDOCK_GUARDED_BY(mu_);  // its last sign of it
  absl::Status hung_ TDOCK_GUARDED_BY(mu_);
  // When to look again.
  absl::Time next_ TDOCK_GUARDED_BY(mu_) = absl::InfiniteFuture();
  bool closing_ TDOCK_GUARDED_BY(mu_) = false;
  std::thread watcher_;  // from the first stage on
};

}  // namespace tdock::trainer
