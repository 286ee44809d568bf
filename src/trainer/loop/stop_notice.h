// What people are told while a run comes to its end early.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "core/base/mutex.h"
#include "trainer/loop/run_context.h"

namespace tdock::trainer {

// A thread that watches a run's context. When the run is told to stop it logs that the run is about to, and once that
// takes more than 30 s, what would be lost if it was killed now.
class StopNotice {
 public:
  // `would_be_lost` is called by the thread. What is referred to must outlive this.
  StopNotice(const RunContext& context, std::function<std::string()> would_be_lost);
  ~StopNotice();
  StopNotice(const StopNotice&) = delete;
  StopNotice& operator=(const StopNotice&) = delete;

 private:
  void Watch() TDOCK_EXCLUDES(mu_);
  // False if the run has ended by then.
  bool WaitUntil(absl::Time time) TDOCK_EXCLUDES(mu_);

  const RunContext& context_;
  const std::function<std::string()> would_be_lost_;
  Mutex mu_;
  CondVar changed_;
  bool ended_ TDOCK_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace tdock::trainer
