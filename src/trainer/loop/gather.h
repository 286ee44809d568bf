// Dynamic sampling (Yu et al. 2025, "DAPO", arXiv:2503.14476, eq. 11): a step trains only on prompts whose answers have
// different rewards, from which alone there is something to learn by comparing them. Prompts are answered in rounds on
// a partition of their own, until there are enough of those:
//
//           ┌────────────────────── a round ─────────────────────┐
//   data ─► │ rollout ─► reward ─► dynamic_sampling ─► next round │   partition NAME-sampling
//           └──────────────────────────────┬─────────────────────┘
//                                          ▼ groups whose rewards differ, with all of their columns
//                                     the rest of the step             partition NAME
//
// Groups beyond those that a step trains on are left out, as in verl and MindSpeed-RL, and counted: all steps then have
// the same size and are on-policy, while answers that were kept for the next step would be of older weights.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tdock/dock.h"
#include "trainer/algo/overlong.h"
#include "trainer/checkpoint/state.h"
#include "trainer/executor/stage_watch.h"
#include "trainer/loop/phase_meter.h"
#include "trainer/stages/stage.h"

namespace tdock::trainer {

// What of a plan is carried out in rounds.
struct Gathering {
  size_t stages = 0;       // the first of the plan's; they write rewards and response_mask
  int64_t groups = 0;      // that a step trains on
  int64_t max_rounds = 0;  // of a step; 0: no limit
  // What a later stage makes of rewards before it compares them, and what is compared here, too: clamped to ±
  // score_clip, and with this penalty; nothing: without one.
  double score_clip = std::numeric_limits<double>::infinity();
  std::optional<algo::OverlongOptions> overlong = {};
};

class GroupFilter;

// The rounds of a run's steps. Its state is that of the step that is open. Used by one thread at a time.
class Gather final : public Stateful {
 public:
  // `stages` are those of the whole plan. `columns` are those of the run's partition, `partition`, of whose groups
  // `group_size` rows make up one. Dock and stages must outlive it.
  Gather(const Gathering& gathering, Dock& dock, std::string partition, const std::vector<ColumnSpec>& columns,
         int64_t group_size, std::span<const std::unique_ptr<Stage>> stages);
  ~Gather() override;

  // The partition of the rounds, which is empty between two of them.
  const std::string& partition() const { return options_.name; }
  const PartitionOptions& options() const { return options_; }
  // See StageRunner.
  void SetRemote(RemoteStages* remote) { runner_.SetRemote(remote); }
  // Registers the stages there, once it exists.
  absl::Status Register();

  // Puts the samples of a round into partition() and returns the number of their rows; 0 at the end of the data.
  using FeedRound = std::function<absl::StatusOr<int64_t>()>;
  struct Gathered {
    RowId first_row = 0;  // of the run's partition; 0 without rows
    int64_t rows = 0;     // fewer than asked for at the end of the data, perhaps none
  };
  // The rounds of the step, whose stages `watch` watches. Cancelled by context.check_stop, it goes on where it was when
  // it is next called.
  // FailedPrecondition if more than Gathering::max_rounds would be needed, saying how many groups were left out.
  //
  // Figures: sampling/rounds; sampling/groups, that were answered; sampling/kept, those that the step trains on;
  // sampling/surplus, those beyond; sampling/equal_share, of the answered ones those whose rewards are equal. Those of
  // stages are of all that was answered.
  absl::StatusOr<Gathered> Run(StageContext& context, PhaseMeter& meter, StageWatch& watch, const FeedRound& feed);

  void Save(State& state) const override;
  absl::Status Load(const State& state) override;

 private:
  absl::Status RunRound(StageContext& context, PhaseMeter& meter, StageWatch& watch);
  absl::Status TooManyRounds() const;

  const Gathering gathering_;
  Dock& dock_;
  const int64_t group_size_;
  PartitionOptions options_;
  std::vector<Stage*> stages_;  // of a round
  std::unique_ptr<GroupFilter> filter_;
  StageRunner runner_;

  int64_t rounds_ = 0;     // of this step, with the one that is open
  bool is_open_ = false;   // a round
  size_t stage_ = 0;       // of it, the next one
  int64_t rows_ = 0;       // that it gets
  int64_t published_ = 0;  // of them, those that it has put already
};

}  // namespace tdock::trainer
