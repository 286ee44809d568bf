#include "bench/runtime/training_memory.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/runtime/reduction_runs.h"
#include "bench/runtime/workers.h"
#include "core/base/process_memory.h"
#include "core/base/status.h"
#include "runtime/collective/gloo/gloo_collective.h"
#include "runtime/launch/port.h"
#include "runtime/rendezvous/rendezvous.h"
#include "trainer/stages/data_parallel.h"

namespace tdock::bench {
namespace {

constexpr absl::Duration kRankTime = absl::Minutes(5);
constexpr int kSteps = 3;
constexpr int64_t kTokens = 32;

// The largest resident set is from now on that of later times.
absl::Status ForgetPeak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file ? absl::OkStatus() : absl::UnavailableError("cannot write /proc/self/clear_refs");
}

at::Tensor LossOf(const model::Decoder& pass) {
  const at::Tensor tokens = at::arange(kTokens).view({1, kTokens});
  return pass.Logits(pass.Hidden({.tokens = tokens, .positions = tokens})).square().mean();
}

absl::Status StepAlone(const model::Decoder& decoder, Workers& workers, trainer::AdamW& optimizer) {
  trainer::Backward(decoder, workers, 1, [](const model::Decoder& pass, size_t) { return LossOf(pass); });
  optimizer.Step(1e-6);
  return absl::OkStatus();
}

absl::Status StepTogether(trainer::DataParallel& parallel, int ranks, Workers& workers, trainer::AdamW& optimizer) {
  parallel.ReleaseWeights();
  const std::vector<int64_t> costs(static_cast<size_t>(ranks), 1);
  TDOCK_RETURN_IF_ERROR(
      parallel.Gradients(workers, costs, [](const model::Decoder& pass, size_t) { return LossOf(pass); }));
  TDOCK_ASSIGN_OR_RETURN(const double squares, parallel.SumOfParts(optimizer.SquaredNorm()));
  optimizer.StepWithNorm(std::sqrt(squares), 1e-6);
  return parallel.ShareWeights();
}

// The peak of the last step.
template <class Step>
absl::StatusOr<int64_t> PeakOf(const Step& step) {
  for (int i = 0; i < kSteps; ++i) {
    if (i + 1 == kSteps) TDOCK_RETURN_IF_ERROR(ForgetPeak());
    TDOCK_RETURN_IF_ERROR(step());
  }
  return PeakResidentMemory(Env::Real());
}

absl::StatusOr<int64_t> PeakAlone(bool quick) {
  const model::Decoder decoder = TrainedModel(quick, /*large=*/true);
  Workers workers(1);
  trainer::AdamW optimizer(decoder.trainable(), {});
  return PeakOf([&] { return StepAlone(decoder, workers, optimizer); });
}

absl::StatusOr<int64_t> PeakTogether(int rank, int ranks, int port, bool quick) {
  const model::Decoder decoder = TrainedModel(quick, /*large=*/true);
  TDOCK_ASSIGN_OR_RETURN(
      const auto rendezvous,
      runtime::Rendezvous::Open({.rank = rank, .world_size = ranks, .master_addr = "127.0.0.1", .master_port = port},
                                kRankTime));
  TDOCK_ASSIGN_OR_RETURN(
      const auto group,
      runtime::OpenGlooCollective(
          {.rendezvous = *rendezvous, .name = "memory", .rank = rank, .size = ranks, .host = "127.0.0.1"},
          absl::Now() + kRankTime));
  Workers workers(1);
  trainer::DataParallel parallel(decoder,
                                 {.group = group.get(), .zero = trainer::Zero::kWeights, .timeout = kRankTime});
  parallel.ReleaseWeights();
  trainer::AdamW optimizer(parallel.Parts({{decoder.trainable()}}), {});
  TDOCK_ASSIGN_OR_RETURN(const int64_t peak, PeakOf([&] { return StepTogether(parallel, ranks, workers, optimizer); }));
  TDOCK_RETURN_IF_ERROR(group->Barrier(absl::Now() + kRankTime));  // nobody leaves before the others are through
  return peak;
}

}  // namespace

absl::Status TrainForMemory(int rank, int ranks, int port, bool quick) {
  TDOCK_ASSIGN_OR_RETURN(const int64_t peak, ranks == 1 ? PeakAlone(quick) : PeakTogether(rank, ranks, port, quick));
  std::cout << peak << std::endl;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> MemoryOfRanks(int ranks, bool quick) {
  TDOCK_ASSIGN_OR_RETURN(const int port, runtime::FreePort());
  std::vector<std::unique_ptr<ChildProcess>> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    TDOCK_ASSIGN_OR_RETURN(auto process,
                           StartWorker({"memory", absl::StrCat(port), absl::StrCat(rank), absl::StrCat(ranks)}, quick));
    processes.push_back(std::move(process));
  }
  int64_t most = 0;
  for (const auto& process : processes) {
    TDOCK_ASSIGN_OR_RETURN(const std::string line, process->ReadLine(kRankTime));
    int64_t bytes = 0;
    if (!absl::SimpleAtoi(line, &bytes)) return absl::InternalError(absl::StrCat("a rank said: ", line));
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace tdock::bench
