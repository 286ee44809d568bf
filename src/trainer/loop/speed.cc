#include "trainer/loop/speed.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "model/decoder/layers.h"

namespace tdock::trainer {
namespace {

constexpr char kSeconds[] = "timing_s/", kFlops[] = "perf/flops/";

// The metrics whose names begin with `prefix`, by the rest of their names.
std::map<std::string, double> Below(const char* prefix, const std::map<std::string, double>& metrics) {
  std::map<std::string, double> found;
  for (const auto& [name, value] : metrics) {
    absl::string_view phase = name;
    if (absl::ConsumePrefix(&phase, prefix)) found.emplace(phase, value);
  }
  return found;
}

double ValueOr0(const std::map<std::string, double>& metrics, const std::string& name) {
  const auto found = metrics.find(name);
  return found == metrics.end() ? 0 : found->second;
}

}  // namespace

double MeasurePeakFlops(Workers& workers, c10::ScalarType dtype, const c10::Device& device, Clock& clock) {
  constexpr int kProducts = 4;
  const int64_t size = device.is_cpu() ? 512 : 4096;
  std::vector<double> rates(static_cast<size_t>(workers.threads()), 0.0);
  workers.Run(workers.threads(), [&](int thread) {
    const at::NoGradGuard no_grad;
    const at::Tensor x = at::ones({size, size}, at::TensorOptions(device).dtype(dtype));
    const model::Linear product{.weight = x, .bias = {}};
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kProducts; ++i) {
      const absl::Time begun = clock.Now();
      product(x)[0][0].item<double>();  // a GPU is waited for
      least = std::min(least, absl::ToDoubleSeconds(clock.Now() - begun));
    }
    const auto n = static_cast<double>(size);
    if (least > 0) rates[static_cast<size_t>(thread)] = 2 * n * n * n / least;
  });
  // More threads than cores take turns, so that each of them is fast for a while.
  const double cores = std::max(std::thread::hardware_concurrency(), 1U);
  return std::accumulate(rates.begin(), rates.end(), 0.0) * std::min(1.0, cores / workers.threads());
}

void AddSpeed(double peak_flops, std::map<std::string, double>& metrics) {
  std::map<std::string, double> seconds = Below(kSeconds, metrics), flops = Below(kFlops, metrics);
  const double step = ValueOr0(seconds, "step");
  if (step <= 0) return;
  const double tokens = ValueOr0(metrics, "perf/total_num_tokens");
  metrics["perf/time_per_step"] = step;
  if (tokens > 0) metrics["perf/throughput"] = tokens / step;
  for (const auto& [phase, took] : seconds) {
    if (phase == "step" || phase == "testing" || phase == "save_checkpoint") continue;
    const double passed = phase == "rollout" ? ValueOr0(metrics, "perf/num_generated_tokens") : tokens;
    if (passed > 0) metrics[absl::StrCat("timing_per_token_ms/", phase)] = 1000 * took / passed;
  }
  if (flops.empty()) return;
  double& all = flops["step"];
  for (const auto& [phase, count] : flops) all += phase == "step" ? 0 : count;
  metrics[absl::StrCat(kFlops, "step")] = all;
  if (peak_flops <= 0) return;
  for (const auto& [phase, count] : flops) {
    const double took = ValueOr0(seconds, phase);
    if (took > 0) metrics[absl::StrCat("perf/mfu/", phase)] = count / took / peak_flops;
  }
}

}  // namespace tdock::trainer
