// What a call of a controller to workers in other processes costs.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/runtime/runtime_benchmarks.h"
#include "bench/runtime/workers.h"
#include "core/net/channel.h"
#include "runtime/control/processes.h"
#include "runtime/dispatch/worker_group.h"
#include "tdock/column.h"

namespace tdock::bench {
namespace {

constexpr absl::Duration kWorkersStart = absl::Minutes(2);
constexpr absl::Duration kCallTime = absl::Seconds(30);
constexpr int64_t kRows = 64;

// A column of float32, of so many bytes in all.
absl::StatusOr<MetaBatch> BatchOf(int64_t rows, int64_t bytes) {
  const int64_t width = bytes / rows / static_cast<int64_t>(sizeof(float));
  std::vector<float> values(static_cast<size_t>(rows * width));
  std::iota(values.begin(), values.end(), 0.0F);
  Batch batch;
  TDOCK_RETURN_IF_ERROR(batch.Add("values", Column::FromValues<float>(values, {width})));
  return MetaBatch(std::move(batch));
}

// The median of the seconds that each of so many calls takes.
template <class Body>
absl::StatusOr<double> MedianSeconds(int calls, Clock& clock, const Body& body, double* p99 = nullptr) {
  std::vector<double> times;
  for (int i = 0; i < calls; ++i) {
    TDOCK_ASSIGN_OR_RETURN(times.emplace_back(), Seconds(clock, body));
  }
  std::sort(times.begin(), times.end());
  if (p99 != nullptr) *p99 = times[times.size() * 99 / 100];
  return times[times.size() / 2];
}

// A controller and its workers, each in a process of its own.
class CallRuns {
 public:
  explicit CallRuns(const Settings& settings)
      : clock_(settings.clock), calls_(settings.quick ? 20 : 1000), large_calls_(settings.quick ? 2 : 20) {}
  ~CallRuns() {
    if (controller_ != nullptr) controller_->End(absl::OkStatus());
  }

  absl::Status SetUp(bool quick) {
    const absl::Time deadline = absl::Now() + kWorkersStart;
    TDOCK_ASSIGN_OR_RETURN(controller_, runtime::OpenController({.world_size = kCallWorkers + 1}));
    for (int rank = 1; rank <= kCallWorkers; ++rank) {
      TDOCK_ASSIGN_OR_RETURN(workers_.emplace_back(),
                             StartWorker({"call", controller_->address(), absl::StrCat(rank)}, quick));
    }
    TDOCK_RETURN_IF_ERROR(controller_->AwaitWorkers(deadline));
    TDOCK_RETURN_IF_ERROR(controller_->Welcome(runtime::Value()));
    TDOCK_RETURN_IF_ERROR(controller_->AwaitServing(deadline));
    std::vector<std::shared_ptr<runtime::WorkerLink>> links;
    for (int rank = 1; rank <= kCallWorkers; ++rank) links.push_back(controller_->worker(rank));
    TDOCK_ASSIGN_OR_RETURN(auto group, runtime::WorkerGroup::Of(std::move(links), {.timeout = kCallTime}));
    group_ = std::make_unique<runtime::WorkerGroup>(std::move(group));
    TDOCK_ASSIGN_OR_RETURN(row_, BatchOf(1, 64));
    return absl::OkStatus();
  }

  absl::StatusOr<Figure> Run() {
    double p99 = 0;
    TDOCK_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(
                                                     calls_, clock_, [&] { return CallAll(); }, &p99));
    std::vector<Detail> details = {{"p99_ms", p99 * 1e3}};
    for (const int64_t mib : {1, 16}) {
      TDOCK_ASSIGN_OR_RETURN(const MetaBatch batch, BatchOf(kRows, mib << 20));
      TDOCK_ASSIGN_OR_RETURN(const double large, MedianSeconds(large_calls_, clock_, [&] { return CallRows(batch); }));
      TDOCK_ASSIGN_OR_RETURN(const double copy, CopySeconds(mib << 20));
      details.push_back({absl::StrCat("mib", mib, "_ms"), large * 1e3});
      details.push_back({absl::StrCat("mib", mib, "_memcpys"), large / copy});
    }
    return Figure(seconds * 1e3, std::move(details));
  }

 private:
  absl::Status CallAll() {
    TDOCK_ASSIGN_OR_RETURN(const std::vector<MetaBatch> answers, group_->Call(kEchoAll, row_));
    return answers.size() == kCallWorkers && answers.back() == row_ ? absl::OkStatus()
                                                                    : absl::InternalError("not what was sent");
  }
  absl::Status CallRows(const MetaBatch& batch) {
    TDOCK_ASSIGN_OR_RETURN(const MetaBatch answer, group_->Call(kEchoRows, batch));
    return answer.rows() == batch.rows() ? absl::OkStatus() : absl::InternalError("not as many rows as were sent");
  }
  // Of so many bytes there, and back.
  absl::StatusOr<double> CopySeconds(int64_t bytes) {
    std::vector<std::byte> here(static_cast<size_t>(bytes), std::byte{1}), there(here);
    return MedianSeconds(5, clock_, [&] {
      std::memcpy(there.data(), here.data(), here.size());
      std::memcpy(here.data(), there.data(), here.size());
      return absl::OkStatus();
    });
  }

  Clock& clock_;
  const int calls_, large_calls_;
  std::vector<std::unique_ptr<ChildProcess>> workers_;
  std::unique_ptr<runtime::Controller> controller_;
  std::unique_ptr<runtime::WorkerGroup> group_;
  MetaBatch row_;
};

// Messages to one process and back, and nothing else.
class BareEcho final : net::Recipient {
 public:
  explicit BareEcho(const Settings& settings) : clock_(settings.clock), calls_(settings.quick ? 20 : 1000) {}

  absl::Status SetUp(bool quick) {
    TDOCK_ASSIGN_OR_RETURN(worker_, StartWorker({"echo"}, quick));
    TDOCK_ASSIGN_OR_RETURN(const std::string address, worker_->ReadLine(kWorkersStart));
    TDOCK_ASSIGN_OR_RETURN(channel_, net::Channel::Connect({.address = address, .role = net::Role::kWorkers}, "",
                                                           absl::Now() + kCallTime));
    return absl::OkStatus();
  }

  absl::StatusOr<Figure> Run() {
    TDOCK_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(calls_, clock_, [&] { return RoundTrip(); }));
    return seconds * 1e3;
  }

 private:
  uint32_t MaxBytes(uint8_t type) const override { return type == kBareEcho ? kEchoBytes : 0; }
  absl::Status OnData(uint64_t, uint64_t, std::span<const std::byte>) override {
    return absl::InvalidArgumentError("an echo of data");
  }
  absl::Status RoundTrip() {
    const absl::Time deadline = absl::Now() + kCallTime;
    channel_->out().Add(net::MessageOf(kBareEcho, 0, std::string(kEchoBytes, 'x')));
    TDOCK_RETURN_IF_ERROR(channel_->Flush(deadline));
    TDOCK_ASSIGN_OR_RETURN(const net::Inbox::Message answer, channel_->Receive(*this, deadline));
    return answer.body.size() == kEchoBytes ? absl::OkStatus() : absl::InternalError("not what was sent");
  }

  static constexpr uint32_t kEchoBytes = 64;
  Clock& clock_;
  const int calls_;
  std::unique_ptr<ChildProcess> worker_;
  std::unique_ptr<net::Channel> channel_;
};

absl::StatusOr<Prepared> PrepareCalls(const Settings& settings) {
  const auto runs = std::make_shared<CallRuns>(settings);
  TDOCK_RETURN_IF_ERROR(runs->SetUp(settings.quick));
  const auto bare = std::make_shared<BareEcho>(settings);
  TDOCK_RETURN_IF_ERROR(bare->SetUp(settings.quick));
  return Prepared{.run = [runs] { return runs->Run(); }, .reference = [bare] { return bare->Run(); }};
}

}  // namespace

Benchmark CallBenchmark() {
  return {.name = "runtime/call", .unit = "ms", .of = "a bare echo of one process", .prepare = PrepareCalls};
}

}  // namespace tdock::bench
