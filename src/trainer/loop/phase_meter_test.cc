#include "trainer/loop/phase_meter.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>

#include "core/base/testing/fake_clock.h"

namespace tdock::trainer {
namespace {

// Touches so much memory that the allocator gives it back to the system when it is freed.
void Hold(size_t bytes, const std::function<void()>& meanwhile = nullptr) {
  const std::unique_ptr<char[]> held(new char[bytes]);
  std::memset(held.get(), 1, bytes);
  if (meanwhile != nullptr) meanwhile();
  asm volatile("" : : "r"(held.get()) : "memory");
}

TEST(PhaseMeter, ReportsTheTimeOfEachPhase) {
  FakeClock clock;
  PhaseMeter meter(clock, Env::Real(), at::kCPU);
  StepMetrics metrics;
  for (const int seconds : {3, 4}) {
    meter.Begin();
    clock.Advance(absl::Seconds(seconds));
    meter.End(seconds == 3 ? "rollout" : "actor", metrics);
  }
  EXPECT_EQ(metrics.Values().at("timing_s/rollout"), 3);
  EXPECT_EQ(metrics.Values().at("timing_s/actor"), 4);
}

TEST(PhaseMeter, ReportsTheMostMemoryOfEachPhaseAndOfAll) {
  constexpr double kHeld = 0.25;  // GiB
  PhaseMeter meter(Clock::Real(), Env::Real(), at::kCPU);
  StepMetrics metrics;
  meter.Begin();
  Hold(size_t{1} << 28);
  meter.End("large", metrics);
  meter.Begin();
  meter.End("small", metrics);
  const std::map<std::string, double> values = metrics.Values();
  EXPECT_GT(values.at("perf/cpu_memory_used_gb/large"), values.at("perf/cpu_memory_used_gb/small") + 0.9 * kHeld);
  EXPECT_EQ(values.at("perf/cpu_memory_used_gb"), values.at("perf/cpu_memory_used_gb/large"));
}

TEST(PhaseMeter, SeesAPeakThatIsNotTheHighestOfTheProcess) {
  Hold(size_t{1} << 29);
  FakeClock clock;
  PhaseMeter meter(clock, Env::Real(), at::kCPU);
  StepMetrics metrics;
  meter.Begin();
  Hold(size_t{1} << 28, [&] {
    clock.AwaitWaiters(1);
    clock.Advance(absl::Milliseconds(10));
    clock.AwaitWaiters(1);  // it has looked again
  });
  meter.End("long", metrics);
  meter.Begin();
  meter.End("small", metrics);
  const std::map<std::string, double> values = metrics.Values();
  EXPECT_GT(values.at("perf/cpu_memory_used_gb/long"), values.at("perf/cpu_memory_used_gb/small") + 0.05);
  EXPECT_LT(values.at("perf/cpu_memory_used_gb/long"), values.at("perf/cpu_memory_used_gb/small") + 0.3);
}

}  // namespace
}  // namespace tdock::trainer
