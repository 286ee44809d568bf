// The stages of a run that its other processes carry out, as its controller sees them: which ranks have which, and the
// calls to them. Each call names rows, which the rank fetches from the dock, and whose columns it puts there: no bytes
// of samples go through the controller.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/env.h"
#include "core/base/mutex.h"
#include "runtime/control/processes.h"
#include "tdock/dock.h"
#include "trainer/distributed/stage_call.h"
#include "trainer/distributed/training_calls.h"
#include "trainer/distributed/weight_transfer.h"
#include "trainer/distributed/worker_stages.h"
#include "trainer/stages/remote_stages.h"
#include "trainer/stages/training_ranks.h"

namespace tdock::trainer {

// The ranks that carry out a role, by its name; a role that is not named is one of rank 0.
using RanksOfRoles = std::map<std::string, std::vector<int>>;

// The ranks that carry out a stage, ascending. One that trains is of all ranks of its role together, and one that no
// other process can carry out of rank 0 alone; one whose results depend on which rows it is given together is of the
// first rank of its role.
std::vector<int> RanksOf(const Stage& stage, const RanksOfRoles& roles);

class StageGroups final : public RemoteStages {
 public:
  struct Options {
    runtime::Controller& controller;
    Dock& dock;
    Env& env;
    RanksOfRoles roles = {};
    // How long a rank may give no sign that it gets on.
    absl::Duration patience = absl::Minutes(30);
    // The group of a role, where it trains and has several ranks, with what each keeps.
    std::function<TrainingRanks(const std::string& role)> training = [](const std::string&) { return TrainingRanks(); };
    // Tells the others how many steps the run has, before they make their stages.
    std::function<absl::Status(int64_t total_steps)> announce = [](int64_t) { return absl::OkStatus(); };
  };
  explicit StageGroups(const Options& options);

  absl::Status Attach(const StagesOfRun& run) override;
  void GoOnFrom(const std::string& folder) override { folder_ = folder; }
  bool Carries(const Stage& stage) const override;
  absl::StatusOr<StageRunner::Round> Run(Stage& stage, const std::string& partition, const Taken& taken,
                                         StageContext& context) override;
  absl::Status Serve(const model::Decoder& decoder, int64_t version) override;
  absl::Status PrepareWeights(const Stage* reader) override;
  absl::Status SwapAverage(Stage& stage) override { return training_.SwapAverage(stage); }
  absl::StatusOr<WriteParts> SnapshotParts(int64_t step, int64_t part) override {
    return training_.SnapshotParts(step, part);
  }
  std::vector<RankSpan> TakeSpans() override TDOCK_EXCLUDES(mu_);

  // Once the others serve, and before a stage is run: see TrainingCalls::Begin().
  absl::Status BeginTraining() { return training_.Begin(folder_); }

  // A worker's notice: passes on that a stage gets on.
  void OnNotice(const runtime::Notice& notice) TDOCK_EXCLUDES(mu_);

 private:
  struct Call;

  absl::Status SendWeights(const model::Decoder& decoder, int64_t version, const std::vector<int>& ranks,
                           const std::function<absl::Status()>& check) TDOCK_EXCLUDES(sending_);
  std::vector<StageShare> Shares(const Stage& stage, const std::string& partition, const Taken& taken,
                                 const StageContext& context) const;
  absl::Status AwaitShares(Call& call, const std::string& partition, const Taken& taken, StageContext& context);
  static void Interrupt(Call& call);
  absl::StatusOr<StageRunner::Round> Gather(Call& call, StageContext& context) TDOCK_EXCLUDES(mu_);

  const Options options_;
  std::map<std::string, std::vector<int>> ranks_;  // by stage
  const Policy* policy_ = nullptr;
  bool serves_ = false;
  std::string folder_;  // of the checkpoint that the run goes on from; empty: none
  TrainingCalls training_;
  std::unique_ptr<WorkerStages> own_;  // of this process
  std::unique_ptr<WeightSender> sender_;
  std::vector<int> receivers_;

  Mutex sending_;
  int64_t sent_version_ TDOCK_GUARDED_BY(sending_) = -1;  // that all receivers have
  bool has_sent_ TDOCK_GUARDED_BY(sending_) = false;

  Mutex mu_;
  std::map<std::string, absl::Time> progress_ TDOCK_GUARDED_BY(mu_);  // by stage
  std::vector<RankSpan> spans_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::trainer
