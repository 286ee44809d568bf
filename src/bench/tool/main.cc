#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/dock/dock_benchmarks.h"
#include "bench/harness/suite.h"
#include "bench/inference/inference_benchmarks.h"
#include "bench/inference/stream_load.h"
#include "bench/runtime/runtime_benchmarks.h"
#include "bench/runtime/workers.h"
#include "bench/service/service_benchmarks.h"
#include "bench/text/dataset_benchmarks.h"
#include "bench/text/text_benchmarks.h"
#include "bench/torch/model_benchmarks.h"
#include "core/base/clock.h"
#include "core/base/env.h"
#include "core/command/command.h"
#include "trainer/stages/guard.h"

namespace tdock::bench {
namespace {

struct BenchArguments {
  SuiteRequest suite;
  int runs = 5;
  int threads = 0;
  bool quick = false;
  std::string device = "cpu";
  std::string peer;
  std::vector<std::string> worker;  // not empty: what this process does for another one that runs benchmarks
};

// One line on standard error that says what is going on: redrawn on a terminal, else written for each benchmark.
class StatusLine {
 public:
  explicit StatusLine(int runs) : runs_(runs), redraws_(::isatty(STDERR_FILENO) == 1) {}

  void Show(const Benchmark& benchmark, int run) {
    const std::string what = run == 0 ? "preparing" : absl::StrCat("run ", run, " of ", runs_);
    if (redraws_) {
      std::cerr << "\r\x1b[K" << benchmark.name << ": " << what << std::flush;
    } else if (run == 0) {
      std::cerr << benchmark.name << std::endl;
    }
  }
  void Clear() {
    if (redraws_) std::cerr << "\r\x1b[K" << std::flush;
  }

 private:
  const int runs_;
  const bool redraws_;
};

std::vector<Benchmark> AllBenchmarks(bool quick) {
  std::vector<Benchmark> all = DockBenchmarks(quick);
  for (std::vector<Benchmark> group :
       {ServiceBenchmarks(quick), TextBenchmarks(quick), KernelBenchmarks(), GenerateBenchmarks(), ForwardBenchmarks(),
        TrainStepBenchmarks(), SftBenchmarks(), DpoBenchmarks(), LoadBenchmarks(), RecipeBenchmarks(),
        RuntimeBenchmarks(), InferenceBenchmarks()}) {
    std::move(group.begin(), group.end(), std::back_inserter(all));
  }
  AddDatasetBenchmarks(all, quick);
  return all;
}

absl::Status Bench(const BenchArguments& arguments) {
  if (arguments.worker.size() == 2 && arguments.worker.front() == "streams") {
    return RunStreamWorker(arguments.worker.back());
  }
  if (!arguments.worker.empty()) return RunWorker(arguments.worker, arguments.quick);
  const int cores = static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u));
  const Settings settings = {.clock = Clock::Real(),
                             .runs = arguments.runs,
                             .threads = arguments.threads > 0 ? arguments.threads : cores,
                             .quick = arguments.quick,
                             .device = arguments.device,
                             .peer = arguments.peer};
  Machine machine = DescribeMachine(Env::Real(), Clock::Real());
  machine.libtorch = LibtorchVersion();
  StatusLine line(settings.runs);
  return RunSuite(AllBenchmarks(settings.quick), arguments.suite, settings, machine,
                  {.env = Env::Real(),
                   .out = std::cout,
                   .watcher = [&](const Benchmark& benchmark, int run) { line.Show(benchmark, run); },
                   .before_row = [&] { line.Clear(); }});
}

void AddOptions(CLI::App& app, BenchArguments& arguments) {
  app.add_option("groups", arguments.suite.names, "Groups, names or prefixes of names; default: all");
  app.add_option("--json", arguments.suite.json_path, "File for the results of every run, as JSON");
  app.add_option("--filter", arguments.suite.filter, "Only benchmarks whose name contains this");
  app.add_flag("--list", arguments.suite.list, "Print the names and units, and stop");
  app.add_option("--runs", arguments.runs, "Timed runs of each benchmark")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--threads", arguments.threads, "For models; 0: all cores")->check(CLI::Range(0, 1024));
  app.add_flag("--quick", arguments.quick, "Small sizes, to check that everything works");
  app.add_option("--device", arguments.device, "For models: cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--worker", arguments.worker)->group("");  // not in --help
  app.add_option("--peer", arguments.peer, "Program to compare with, instead of the references (bench/peers)");
}

}  // namespace
}  // namespace tdock::bench

int main(int argc, char** argv) {
  CLI::App app("Runs benchmarks and prints a table of results.", "tdock bench");
  tdock::bench::BenchArguments arguments;
  tdock::bench::AddOptions(app, arguments);
  return tdock::command::ParseAndRun(
      app, argc, argv, [&] { return tdock::trainer::Guarded([&] { return tdock::bench::Bench(arguments); }); });
}
