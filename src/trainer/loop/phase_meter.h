// How long the phases of a step take, and how much memory they hold.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "core/base/env.h"
#include "core/base/mutex.h"
#include "tdock/clock.h"
#include "trainer/stages/step_metrics.h"

namespace tdock::trainer {

// Begin() and End() are called in turn by one thread.
class PhaseMeter {
 public:
  // On the CPU memory is the resident set of this process, which a thread looks at every 10 ms, so that a shorter peak
  // counts only if it is the highest so far. `clock` and `env` must outlive the meter.
  PhaseMeter(Clock& clock, Env& env, const at::Device& device);
  ~PhaseMeter();
  PhaseMeter(const PhaseMeter&) = delete;
  PhaseMeter& operator=(const PhaseMeter&) = delete;

  void Begin() TDOCK_EXCLUDES(mu_);
  // Of the time since Begin(): timing_s/PHASE, seconds, of a phase that comes again their sum, and in GiB the most
  // memory that was held,
  //   perf/cpu_memory_used_gb/PHASE                                              on the CPU, where /proc tells;
  //   perf/max_memory_allocated_gb/PHASE and perf/max_memory_reserved_gb/PHASE   on a GPU, by libtorch's allocator;
  // and without /PHASE the maximum over the phases that are reported to the same metrics.
  void End(const std::string& phase, StepMetrics& metrics) TDOCK_EXCLUDES(mu_);

 private:
  void Watch() TDOCK_EXCLUDES(mu_);
  void Note(int64_t resident) TDOCK_EXCLUDES(mu_);
  int64_t PeakOfProcess() const;
  void ReportProcess(const std::string& phase, StepMetrics& metrics) TDOCK_EXCLUDES(mu_);
  void ReportDevice(const std::string& phase, StepMetrics& metrics) const;

  Clock& clock_;
  Env& env_;
  const at::Device device_;
  absl::Time begun_;
  int64_t peak_before_ = 0;  // of the process, when the phase began

  Mutex mu_;
  CondVar changed_;
  bool measuring_ TDOCK_GUARDED_BY(mu_) = false;
  bool stopping_ TDOCK_GUARDED_BY(mu_) = false;
  int64_t most_ TDOCK_GUARDED_BY(mu_) = 0;  // resident bytes since Begin(); 0: unknown
  std::optional<std::thread> watcher_;      // on the CPU
};

}  // namespace tdock::trainer
