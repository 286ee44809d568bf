#include "trainer/executor/stage_watch.h"

#include "trainer/executor/stage_threads.h"

namespace tdock::trainer {

StageWatch::~StageWatch() {
  {
    const MutexLock lock(mu_);
    closing_ = true;
    changed_.NotifyAll();
  }
  if (watcher_.joinable()) watcher_.join();
}

void StageWatch::Begin(const std::string& stage, const std::string& rows) {
  if (options_.patience == absl::InfiniteDuration()) return;
  const absl::Time now = options_.clock.Now();
  {
    const MutexLock lock(mu_);
    works_ = true;
    stage_ = stage;
    rows_ = rows;
    progress_ = now;
    next_ = now + options_.patience;
    changed_.NotifyAll();
  }
  if (!watcher_.joinable()) watcher_ = std::thread([this] { Watch(); });
}

absl::Status StageWatch::End() {
  const MutexLock lock(mu_);
  works_ = false;
  next_ = absl::InfiniteFuture();
  return std::exchange(hung_, absl::OkStatus());
}

void StageWatch::Progress() {
  const absl::Time now = options_.clock.Now();
  const MutexLock lock(mu_);
  progress_ = now;
}

absl::Status StageWatch::Look() {
  const absl::Time now = options_.clock.Now();
  if (!works_ || now < next_) return absl::OkStatus();
  if (!hung_.ok()) {
    next_ = absl::InfiniteFuture();
    return hung_;
  }
  if (now < progress_ + options_.patience) {
    next_ = progress_ + options_.patience;
    return absl::OkStatus();
  }
  hung_ = NoProgress(stage_, rows_, now - progress_);
  next_ = now + options_.grace;
  return absl::OkStatus();
}

void StageWatch::Watch() {
  for (;;) {
    absl::Status given_up;
    {
      const MutexLock lock(mu_);
      if (closing_) return;
      given_up = Look();
      if (given_up.ok()) options_.clock.Wait(changed_, mu_, next_);
    }
    if (!given_up.ok()) options_.give_up(given_up);
  }
}

}  // namespace tdock::trainer
