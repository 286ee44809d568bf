// Gloo's headers are Debian's; see runtime/collective/gloo/gloo_collective.cc.
#define USE_C10D_GLOO

#include "bench/runtime/reduction_runs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "runtime/collective/gloo/gloo_collective.h"
#include "runtime/rendezvous/rendezvous.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp"
#include "trainer/stages/data_parallel.h"

namespace tdock::bench {
namespace {

constexpr char kLoopback[] = "127.0.0.1";
constexpr absl::Duration kRanksStart = absl::Minutes(2);
constexpr absl::Duration kReductionTime = absl::Minutes(1);
constexpr absl::Duration kLongestPause = absl::Hours(1);  // between two runs
constexpr int kRepeats = 5;                               // in a run, whose figure is of medians
constexpr double kLargestDifference = 1e-3;               // of the sum of two equal gradients from twice one

double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class ReductionRank final : public ReductionRuns {
 public:
  ReductionRank(int rank, bool quick)
      : rank_(rank),
        decoder_(TrainedModel(quick, /*large=*/false)),
        numbers_(at::empty({decoder_.parameter_count()}, at::kFloat)) {}

  absl::Status Connect(int port) {
    TDOCK_ASSIGN_OR_RETURN(
        rendezvous_, runtime::Rendezvous::Open(
                         {.rank = rank_, .world_size = kReductionRanks, .master_addr = kLoopback, .master_port = port},
                         kRanksStart));
    TDOCK_ASSIGN_OR_RETURN(group_, runtime::OpenGlooCollective({.rendezvous = *rendezvous_,
                                                                .name = "reductions",
                                                                .rank = rank_,
                                                                .size = kReductionRanks,
                                                                .host = kLoopback},
                                                               In(kRanksStart)));
    parallel_ = std::make_unique<trainer::DataParallel>(
        decoder_, trainer::TrainingRanks{.group = group_.get(), .timeout = kReductionTime});
    TDOCK_ASSIGN_OR_RETURN(const auto store, rendezvous_->NewStore());
    const auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::minutes(1));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(kLoopback));
    bare_ = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>("bare/", store), rank_,
                                                        kReductionRanks, options);
    return absl::OkStatus();
  }

  absl::StatusOr<double> Run(Reduction reduction, Clock& clock) override {
    TDOCK_ASSIGN_OR_RETURN(const auto said, group_->AllReduceMax(static_cast<int64_t>(reduction), In(kLongestPause)));
    std::vector<double> seconds, alone;  // of a bare one, or of a step, and of a step without others
    for (int i = 0; i < kRepeats; ++i) {
      if (static_cast<Reduction>(said) == Reduction::kBare) {
        TDOCK_ASSIGN_OR_RETURN(seconds.emplace_back(), AddUpBare(clock));
        alone.push_back(0);
      } else {
        TDOCK_RETURN_IF_ERROR(AddUpStep(clock, alone.emplace_back(), seconds.emplace_back()));
      }
    }
    return std::max(MedianOf(seconds) - MedianOf(alone), 1e-6);
  }

  double bytes() const override { return static_cast<double>(numbers_.nbytes()); }

 private:
  static absl::Time In(absl::Duration time) { return Clock::Real().Now() + time; }

  // Seconds that `body` takes, which all ranks begin at once.
  template <class Body>
  absl::StatusOr<double> Timed(Clock& clock, const Body& body) {
    TDOCK_RETURN_IF_ERROR(group_->Barrier(In(kReductionTime)));
    const absl::Time begun = clock.Now();
    TDOCK_RETURN_IF_ERROR(body());
    return absl::ToDoubleSeconds(clock.Now() - begun);
  }

  absl::Status AddUpStep(Clock& clock, double& alone, double& together) {
    const trainer::PassLoss loss = [&](const model::Decoder& pass, size_t) {
      return pass.Logits(pass.Hidden({.tokens = tokens_, .positions = at::arange(tokens_.size(1)).view({1, -1})}))
          .square()
          .mean();
    };
    TDOCK_ASSIGN_OR_RETURN(alone, Timed(clock, [&] {
                             trainer::Backward(decoder_, workers_, 1, loss);
                             return absl::OkStatus();
                           }));
    const double norm = NormOfGradients();
    const std::vector<int64_t> costs(kReductionRanks, 1);
    TDOCK_ASSIGN_OR_RETURN(together, Timed(clock, [&] { return parallel_->Gradients(workers_, costs, loss); }));
    const double sum = NormOfGradients();
    if (std::abs(sum - kReductionRanks * norm) <= kLargestDifference * sum) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("the gradients have norm ", norm, " alone, and ", sum, " in sum"));
  }

  // And drops them.
  double NormOfGradients() {
    double squares = 0;
    for (const at::Tensor& parameter : decoder_.trainable()) {
      squares += std::pow(parameter.grad().norm().item<double>(), 2);
      at::Tensor(parameter).mutable_grad() = at::Tensor();
    }
    return std::sqrt(squares);
  }

  absl::StatusOr<double> AddUpBare(Clock& clock) {
    numbers_.fill_(rank_ + 1);
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Timed(clock, [&] {
                             std::vector<at::Tensor> tensors = {numbers_};
                             bare_->allreduce(tensors)->wait();
                             return absl::OkStatus();
                           }));
    const float sum = kReductionRanks * (kReductionRanks + 1) / 2;
    if (numbers_.min().item<float>() == sum && numbers_.max().item<float>() == sum) return seconds;
    return absl::InternalError("the sum of the numbers is wrong");
  }

  const int rank_;
  const model::Decoder decoder_;
  const at::Tensor numbers_;  // as many as there are gradients
  const at::Tensor tokens_ = at::arange(8).view({1, 8});
  Workers workers_{1};
  std::unique_ptr<runtime::Rendezvous> rendezvous_;
  std::unique_ptr<runtime::TensorCollective> group_;
  std::unique_ptr<trainer::DataParallel> parallel_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> bare_;
};

}  // namespace

model::Decoder TrainedModel(bool quick, bool large) {
  model::ModelConfig config;
  config.vocab_size = quick ? 512 : large ? 8192 : 16'384;
  config.hidden_size = quick ? 128 : large ? 1024 : 768;
  config.intermediate_size = 3 * config.hidden_size;
  config.num_layers = quick ? 4 : large ? 36 : 12;
  config.num_heads = config.hidden_size / 64;
  config.num_kv_heads = config.num_heads / 2;
  config.head_dim = 64;
  config.max_positions = 1024;
  config.tied_head = true;
  model::Decoder decoder = model::Decoder::Random(config, 1, at::kCPU);
  decoder.SetTrainable(true);
  return decoder;
}

absl::StatusOr<std::unique_ptr<ReductionRuns>> ReductionRuns::Open(int port, bool quick) {
  auto rank = std::make_unique<ReductionRank>(0, quick);
  TDOCK_RETURN_IF_ERROR(rank->Connect(port));
  return rank;
}

absl::Status ServeReductions(int rank, int port, bool quick) {
  ReductionRank served(rank, quick);
  TDOCK_RETURN_IF_ERROR(served.Connect(port));
  for (;;) TDOCK_RETURN_IF_ERROR(served.Run(Reduction::kStep, Clock::Real()).status());
}

}  // namespace tdock::bench
