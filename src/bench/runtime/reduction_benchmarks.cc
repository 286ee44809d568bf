// What a training step costs to add up over its ranks.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/runtime/reduction_runs.h"
#include "bench/runtime/runtime_benchmarks.h"
#include "bench/runtime/training_memory.h"
#include "bench/runtime/workers.h"
#include "runtime/launch/port.h"
#include "trainer/stages/guard.h"

namespace tdock::bench {
namespace {

// The worker is declared last: it is killed before rank 0's connections end.
struct ReductionProcesses {
  std::unique_ptr<ReductionRuns> runs;
  std::unique_ptr<ChildProcess> worker;
};

absl::StatusOr<Prepared> PrepareReductions(const Settings& settings) {
  const auto processes = std::make_shared<ReductionProcesses>();
  TDOCK_ASSIGN_OR_RETURN(const int port, runtime::FreePort());
  TDOCK_ASSIGN_OR_RETURN(processes->worker, StartWorker({"reductions", absl::StrCat(port), "1"}, settings.quick));
  TDOCK_ASSIGN_OR_RETURN(processes->runs, ReductionRuns::Open(port, settings.quick));
  const auto run = [processes, &clock = settings.clock](Reduction reduction) -> absl::StatusOr<Figure> {
    TDOCK_ASSIGN_OR_RETURN(const double seconds, processes->runs->Run(reduction, clock));
    return processes->runs->bytes() / seconds / 1e9;
  };
  return Prepared{.run = [run] { return run(Reduction::kStep); }, .reference = [run] { return run(Reduction::kBare); }};
}

}  // namespace

Benchmark ReductionBenchmark() {
  return {.name = "parallel/reduction",
          .unit = "GB/s",
          .better = Better::kHigher,
          .of = "one all-reduce of c10d",
          .prepare = [](const Settings& settings) {
            return trainer::Guarded([&] { return PrepareReductions(settings); });
          }};
}

Benchmark TrainingMemoryBenchmark() {
  return {.name = "parallel/memory",
          .unit = "MB",
          .better = Better::kLower,
          .of = "one rank that has everything",
          .prepare = [](const Settings& settings) -> absl::StatusOr<Prepared> {
            const auto run = [quick = settings.quick](int ranks) -> absl::StatusOr<Figure> {
              TDOCK_ASSIGN_OR_RETURN(const int64_t bytes, MemoryOfRanks(ranks, quick));
              return static_cast<double>(bytes) / 1e6;
            };
            return Prepared{.run = [run] { return run(4); }, .reference = [run] { return run(1); }};
          }};
}

}  // namespace tdock::bench
