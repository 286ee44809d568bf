// The weights of a model from the process that trains it to one that answers with it.
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/runtime/runtime_benchmarks.h"
#include "bench/runtime/workers.h"
#include "dock/local/shared_dock.h"
#include "trainer/distributed/weight_transfer.h"
#include "trainer/stages/guard.h"

namespace tdock::bench {
namespace {

constexpr absl::Duration kReceiverStarts = absl::Minutes(2);
constexpr absl::Duration kTransferTime = absl::Minutes(1);
constexpr double kGigabyte = 1e9;

class WeightRuns {
 public:
  explicit WeightRuns(const Settings& settings)
      : clock_(settings.clock), decoder_(TransferredModel(settings.quick, 1)) {}

  absl::Status SetUp(bool quick) {
    TDOCK_ASSIGN_OR_RETURN(dock_, dock::OpenSharedDock({.serve = "unix"}));
    sender_ = std::make_unique<trainer::WeightSender>(dock_->dock(), std::vector<std::string>{kReceiver});
    TDOCK_RETURN_IF_ERROR(sender_->Open());
    TDOCK_ASSIGN_OR_RETURN(receiver_, StartWorker({"weights", dock_->address()}, quick));
    for (const at::Tensor& tensor : decoder_.parameters()) copies_.push_back(tensor.detach().clone());
    return receiver_->ReadLine(kReceiverStarts).status();
  }

  // Until the receiver says that it has them.
  absl::StatusOr<Figure> Run() {
    trainer::WeightsSent sent;
    uint64_t received = 0;
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock_, [&]() -> absl::Status {
                             TDOCK_ASSIGN_OR_RETURN(sent,
                                                    sender_->Send(decoder_, ++version_, absl::Now() + kTransferTime));
                             TDOCK_ASSIGN_OR_RETURN(const std::string line, receiver_->ReadLine(kTransferTime));
                             return absl::SimpleAtoi(line, &received) ? absl::OkStatus() : absl::InternalError(line);
                           }));
    if (received != sent.checksum) return absl::InternalError("the receiver has other weights than were sent");
    return static_cast<double>(sent.bytes) / seconds / kGigabyte;
  }

  absl::StatusOr<Figure> Copy() {
    int64_t bytes = 0;
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock_, [&] {
                             for (size_t i = 0; i < copies_.size(); ++i) {
                               const at::Tensor& from = decoder_.parameters()[i];
                               std::memcpy(copies_[i].data_ptr(), from.data_ptr(), from.nbytes());
                               bytes += static_cast<int64_t>(from.nbytes());
                             }
                             return absl::OkStatus();
                           }));
    return static_cast<double>(bytes) / seconds / kGigabyte;
  }

 private:
  Clock& clock_;
  const model::Decoder decoder_;
  std::vector<at::Tensor> copies_;
  std::unique_ptr<dock::SharedDock> dock_;
  std::unique_ptr<trainer::WeightSender> sender_;
  std::unique_ptr<ChildProcess> receiver_;
  int64_t version_ = 0;
};

absl::StatusOr<Prepared> PrepareWeights(const Settings& settings) {
  const auto runs = std::make_shared<WeightRuns>(settings);
  TDOCK_RETURN_IF_ERROR(runs->SetUp(settings.quick));
  return Prepared{.run = [runs] { return runs->Run(); }, .reference = [runs] { return runs->Copy(); }};
}

}  // namespace

Benchmark WeightsBenchmark() {
  return {
      .name = "runtime/weights",
      .unit = "GB/s",
      .better = Better::kHigher,
      .of = "memcpy",
      .prepare = [](const Settings& settings) { return trainer::Guarded([&] { return PrepareWeights(settings); }); }};
}

}  // namespace tdock::bench
