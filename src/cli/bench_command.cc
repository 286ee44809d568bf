#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/env.h"
#include "bench/dock_benchmarks.h"
#include "bench/suite.h"
#include "bench_service/service_benchmarks.h"
#include "bench_text/dataset_benchmarks.h"
#include "bench_text/text_benchmarks.h"
#include "bench_torch/model_benchmarks.h"
#include "cli/commands.h"
#include "rpc/malloc_settings.h"

namespace tdock::cli {
namespace {

struct BenchArguments {
  bench::SuiteRequest suite;
  int runs = 5;
  int threads = 0;
  bool quick = false;
  std::string device = "cpu";
  std::string peer;
};

// One line on standard error that says what is going on: redrawn on a terminal, else written for each benchmark.
class StatusLine {
 public:
  explicit StatusLine(int runs) : runs_(runs), redraws_(::isatty(STDERR_FILENO) == 1) {}

  void Show(const bench::Benchmark& benchmark, int run) {
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

std::vector<bench::Benchmark> AllBenchmarks(bool quick) {
  std::vector<bench::Benchmark> all = bench::DockBenchmarks(quick);
  for (std::vector<bench::Benchmark> group :
       {bench::ServiceBenchmarks(quick), bench::TextBenchmarks(quick), bench::GenerateBenchmarks(),
        bench::TrainStepBenchmarks(), bench::LoadBenchmarks()}) {
    std::move(group.begin(), group.end(), std::back_inserter(all));
  }
  bench::AddDatasetBenchmarks(all, quick);
  return all;
}

absl::Status Bench(const BenchArguments& arguments) {
  rpc::KeepFreedMemory();
  const int cores = static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u));
  const bench::Settings settings = {.clock = Clock::Real(),
                                    .runs = arguments.runs,
                                    .threads = arguments.threads > 0 ? arguments.threads : cores,
                                    .quick = arguments.quick,
                                    .device = arguments.device,
                                    .peer = arguments.peer};
  bench::Machine machine = bench::DescribeMachine(Env::Real(), Clock::Real());
  machine.libtorch = bench::LibtorchVersion();
  StatusLine line(settings.runs);
  return bench::RunSuite(AllBenchmarks(settings.quick), arguments.suite, settings, machine,
                         {.env = Env::Real(),
                          .out = std::cout,
                          .watcher = [&](const bench::Benchmark& benchmark, int run) { line.Show(benchmark, run); },
                          .before_row = [&] { line.Clear(); }});
}

}  // namespace

Command AddBench(CLI::App& app) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* command = app.add_subcommand("bench", "Measures this machine with this build; prints a table.");
  command->add_option("groups", arguments->suite.names, "Groups, names or what names start with; none: all");
  command->add_option("--json", arguments->suite.json_path, "File for the figures of every run");
  command->add_option("--filter", arguments->suite.filter, "Only names that contain this");
  command->add_flag("--list", arguments->suite.list, "Print the names and units, and stop");
  command->add_option("--runs", arguments->runs, "Timed runs of each benchmark")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--threads", arguments->threads, "For models; 0: all cores")->check(CLI::Range(0, 1024));
  command->add_flag("--quick", arguments->quick, "Small sizes, to see that everything works");
  command->add_option("--device", arguments->device, "For models: cpu, cuda or cuda:N")->capture_default_str();
  command->add_option("--peer", arguments->peer, "Program to alternate with, instead of the references (bench/peers)");
  return [arguments] { return Bench(*arguments); };
}

}  // namespace tdock::cli
