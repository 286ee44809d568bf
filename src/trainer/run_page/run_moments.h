// Moments of runs: the stages that work just now, for pages that show it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "core/base/mutex.h"

namespace tdock::trainer {

// Asks the runs that somebody looks at, one after the other, on a thread of its own: a run that hangs delays the
// others' moments and nothing else. Thread-safe.
class RunMoments {
 public:
  RunMoments();
  ~RunMoments();
  RunMoments(const RunMoments&) = delete;
  RunMoments& operator=(const RunMoments&) = delete;

  struct Run {
    std::string path = {};
    bool at_work = false;  // others are not asked
    bool operator==(const Run&) const = default;
  };
  // The runs to ask from now on, by name. What others have said is forgotten.
  void Watch(std::map<std::string, Run> runs) TDOCK_EXCLUDES(mu_);

  // The last event "moment" of a run, whose number says whether a client has it. 0: there is none yet.
  struct Moment {
    uint64_t number = 0;
    std::shared_ptr<const std::string> event = {};
  };
  Moment Last(const std::string& name) const TDOCK_EXCLUDES(mu_);

 private:
  using SteadyTime = std::chrono::steady_clock::time_point;
  struct Entry {
    Run run = {};
    SteadyTime next = {};
    Moment moment = {};
  };

  void Work() TDOCK_EXCLUDES(mu_);
  // The run that is to be asked first. Null if there is none.
  std::pair<const std::string, Entry>* FirstDue() TDOCK_REQUIRES(mu_);

  mutable Mutex mu_;
  CondVar changed_;
  std::map<std::string, Entry> runs_ TDOCK_GUARDED_BY(mu_);
  bool ending_ TDOCK_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace tdock::trainer
