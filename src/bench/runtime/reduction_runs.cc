// Gloo's headers are Debian's; see runtime/collective/gloo/gloo_collective.cc.
#define USE_C10D_GLOO

#include "bench/runtime/reduction_runs.h"

#include <ATen/ATen.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/base/status.h"
#include "runtime/collective/gloo/gloo_collective.h"
#include "runtime/rendezvous/rendezvous.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp"

namespace tdock::bench {
namespace {

constexpr char kLoopback[] = "127.0.0.1";
constexpr absl::Duration kRanksStart = absl::Minutes(2);
constexpr absl::Duration kReductionTime = absl::Minutes(1);
constexpr absl::Duration kLongestPause = absl::Hours(1);  // between two runs
constexpr int64_t kBucketNumbers = 25'000'000 / 4;

class ReductionRank final : public ReductionRuns {
 public:
  ReductionRank(int rank, bool quick)
      : rank_(rank), gradients_(at::empty({(quick ? 3'800'000 : 380'000'000) / 4}, at::kFloat)) {}

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
    TDOCK_ASSIGN_OR_RETURN(const auto store, rendezvous_->NewStore());
    const auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::minutes(1));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(kLoopback));
    bare_ = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>("bare/", store), rank_,
                                                        kReductionRanks, options);
    return absl::OkStatus();
  }

  absl::StatusOr<double> Run(Reduction reduction, Clock& clock) override {
    TDOCK_ASSIGN_OR_RETURN(const auto said, group_->AllReduceMax(static_cast<int64_t>(reduction), In(kLongestPause)));
    gradients_.fill_(rank_ + 1);
    TDOCK_RETURN_IF_ERROR(group_->Barrier(In(kReductionTime)));
    const absl::Time begun = clock.Now();
    TDOCK_RETURN_IF_ERROR(static_cast<Reduction>(said) == Reduction::kBare ? AddUpBare() : AddUpBuckets());
    const double seconds = absl::ToDoubleSeconds(clock.Now() - begun);
    const float sum = kReductionRanks * (kReductionRanks + 1) / 2;
    if (gradients_.min().item<float>() != sum || gradients_.max().item<float>() != sum) {
      return absl::InternalError("the sum of the gradients is wrong");
    }
    return seconds;
  }

  double bytes() const override { return static_cast<double>(gradients_.nbytes()); }

 private:
  static absl::Time In(absl::Duration time) { return Clock::Real().Now() + time; }

  absl::Status AddUpBuckets() {
    for (const at::Tensor& bucket : gradients_.split(kBucketNumbers)) {
      TDOCK_RETURN_IF_ERROR(group_->AllReduceSum(bucket, In(kReductionTime)));
    }
    return absl::OkStatus();
  }

  absl::Status AddUpBare() {
    std::vector<at::Tensor> tensors = {gradients_};
    bare_->allreduce(tensors)->wait();
    return absl::OkStatus();
  }

  const int rank_;
  const at::Tensor gradients_;
  std::unique_ptr<runtime::Rendezvous> rendezvous_;
  std::unique_ptr<runtime::TensorCollective> group_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> bare_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ReductionRuns>> ReductionRuns::Open(int port, bool quick) {
  auto rank = std::make_unique<ReductionRank>(0, quick);
  TDOCK_RETURN_IF_ERROR(rank->Connect(port));
  return rank;
}

absl::Status ServeReductions(int rank, int port, bool quick) {
  ReductionRank served(rank, quick);
  TDOCK_RETURN_IF_ERROR(served.Connect(port));
  for (;;) TDOCK_RETURN_IF_ERROR(served.Run(Reduction::kBuckets, Clock::Real()).status());
}

}  // namespace tdock::bench
