#include "trainer/loop/phase_meter.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/process_memory.h"

namespace tdock::trainer {
namespace {

constexpr absl::Duration kBetweenLooks = absl::Milliseconds(10);

void ReportBytes(const char* name, const std::string& phase, int64_t bytes, StepMetrics& metrics) {
  const double gib = static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30);
  metrics.Max(name, gib);
  metrics.Max(absl::StrCat(name, "/", phase), gib);
}

}  // namespace

PhaseMeter::PhaseMeter(Clock& clock, Env& env, const at::Device& device) : clock_(clock), env_(env), device_(device) {
  if (device_.is_cpu()) watcher_.emplace([this] { Watch(); });
}

PhaseMeter::~PhaseMeter() {
  if (!watcher_.has_value()) return;
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  watcher_->join();
}

void PhaseMeter::Begin() {
  begun_ = clock_.Now();
  if (!device_.is_cpu()) {
    at::getDeviceAllocator(device_.type())->resetPeakStats(std::max<c10::DeviceIndex>(device_.index(), 0));
    return;
  }
  peak_before_ = PeakOfProcess();
  MutexLock lock(mu_);
  most_ = 0;
  measuring_ = true;
  changed_.NotifyAll();
}

void PhaseMeter::End(const std::string& phase, StepMetrics& metrics) {
  metrics.Sum(absl::StrCat("timing_s/", phase), absl::ToDoubleSeconds(clock_.Now() - begun_));
  if (device_.is_cpu()) {
    ReportProcess(phase, metrics);
  } else {
    ReportDevice(phase, metrics);
  }
}

void PhaseMeter::Watch() {
  for (;;) {
    {
      MutexLock lock(mu_);
      while (!measuring_ && !stopping_) changed_.Wait(mu_);
      if (stopping_) return;
    }
    Note(ResidentMemory(env_).value_or(0));
    MutexLock lock(mu_);
    if (measuring_ && !stopping_) clock_.Wait(changed_, mu_, clock_.Now() + kBetweenLooks);
  }
}

void PhaseMeter::Note(int64_t resident) {
  MutexLock lock(mu_);
  most_ = std::max(most_, resident);
}

int64_t PhaseMeter::PeakOfProcess() const { return PeakResidentMemory(env_).value_or(0); }

void PhaseMeter::ReportProcess(const std::string& phase, StepMetrics& metrics) {
  Note(ResidentMemory(env_).value_or(0));
  // A new record is known to the byte.
  if (const int64_t peak = PeakOfProcess(); peak > peak_before_) Note(peak);
  int64_t most = 0;
  {
    MutexLock lock(mu_);
    measuring_ = false;
    most = most_;
  }
  if (most > 0) ReportBytes("perf/cpu_memory_used_gb", phase, most, metrics);
}

void PhaseMeter::ReportDevice(const std::string& phase, StepMetrics& metrics) const {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats =
      at::getDeviceAllocator(device_.type())->getDeviceStats(std::max<c10::DeviceIndex>(device_.index(), 0));
  ReportBytes("perf/max_memory_allocated_gb", phase, stats.allocated_bytes[kAll].peak, metrics);
  ReportBytes("perf/max_memory_reserved_gb", phase, stats.reserved_bytes[kAll].peak, metrics);
}

}  // namespace tdock::trainer
