// Stages: the steps of post-training, which take rows from a dock and put columns into it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/decoder/decoder.h"
#include "tdock/dock.h"
#include "trainer/checkpoint/state.h"
#include "trainer/stages/step_metrics.h"

namespace tdock::trainer {

struct StageOutput {
  // The columns that the stage writes, with a row for each input row, in their order. Empty if it writes none. What it
  // holds for rows of dropped and requeued groups is not put.
  Batch columns = {};
  // The version of the weights that made them, if weights did.
  int64_t weights_version = kNoWeightsVersion;
  // Prompt groups that no stage goes on with, such as those whose rewards are all equal; with all of
  // their rows, whether the stage was given them or has put them before.
  std::vector<GroupId> dropped = {};
  // Prompt groups that the stage is given once more, such as those whose scorer did not answer.
  std::vector<GroupId> requeued = {};
};

struct FurtherRows;

struct StageContext {
  int64_t step;
  StepMetrics& metrics;
  // Cancelled once the run must end.
  std::function<absl::Status()> check_stop = [] { return absl::OkStatus(); };
  // Called when the stage shows that it is getting on.
  std::function<void()> progress = [] {};

  // Set by the runner; by the thread of Run() only. Puts the columns of some of the rows, by their indexes, before the
  // stage is through, with the version of the weights that made them; for a stage of groups all rows of a group
  // together. The stage's output then has the others only, in their order. What is put stays, whatever comes of the
  // others.
  std::function<absl::Status(std::span<const size_t> indexes, Batch columns, int64_t weights_version)> publish =
      nullptr;
  // Likewise, but they are not complete: the rows are given back, older by one, for the stage to go on with.
  std::function<absl::Status(std::span<const size_t> indexes, Batch columns, int64_t weights_version)> put_back =
      nullptr;
  // Likewise, but no stage goes on with them: for a stage of groups all rows of a group together.
  std::function<absl::Status(std::span<const size_t> indexes)> drop = nullptr;
  // For those that take minutes: keeps the lease on the rows.
  std::function<absl::Status()> renew = nullptr;
  // Set by the runner where the stage may take rows while it works on others: all that are ready now; null: none are.
  std::function<absl::StatusOr<std::unique_ptr<FurtherRows>>()> more = nullptr;
  // Called by the runner after what is put, put back or dropped early: what the metrics say by then is of rows that
  // stay as they are.
  std::function<void()> on_put = [] {};
  // The rows that the stage has put early.
  int64_t published = 0;
  // Whether it is given all rows of the step at once.
  bool whole_step = true;
};

// Rows that a stage has taken while it worked on others. It puts, puts back or drops all of them through their own
// context; its output is of the others alone. What it has not put when it is through is ready again.
struct FurtherRows {
  FurtherRows(Taken rows_taken, const StageContext& of_stage)
      : taken(std::move(rows_taken)), context(of_stage), early(taken.rows.size()) {}
  FurtherRows(const FurtherRows&) = delete;
  FurtherRows& operator=(const FurtherRows&) = delete;

  const Taken taken;
  StageContext context;
  std::vector<bool> early;  // of each row: the runner's
};

// What the rows that a stage is given together mean for what it writes for one of them.
enum class Together {
  kNothing,   // it is the same, bit for bit, whichever others there are
  kLastBits,  // sums may be rounded otherwise
  kResult,    // it depends on them: the stage needs all rows of a step
};

// Of passes of a decoder.
inline Together TogetherIn(const model::Decoder& decoder) {
  return decoder.batch_invariant() ? Together::kNothing : Together::kLastBits;
}

// What a stage must know of its earlier steps is its state; by default there is nothing. Used by one thread at a time.
class Stage : public Stateful {
 public:
  // The options of the stage's consumer: its name, what it reads and writes, rows or groups, its sampler.
  virtual const ConsumerOptions& consumer() const = 0;

  void Save(State& /*state*/) const override {}
  absl::Status Load(const State& /*state*/) override { return absl::OkStatus(); }

  // May throw: the runner turns exceptions into errors. Cancelled by StageContext::check_stop, it goes on where it was
  // when it is next run, on the same rows, which is then a part of its state.
  virtual absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) = 0;

  // Whether it needs the weights that this process trains, so that no other process can carry it out.
  virtual bool uses_policy() const { return false; }
  virtual Together together() const { return Together::kResult; }
  // Whether it changes weights.
  virtual bool trains() const { return false; }
  // Of a stage that trains with other ranks: whether this one has only a part of the state.
  virtual bool has_shards() const { return false; }
  // And whether the weights are a part of that.
  virtual bool splits_weights() const { return false; }
  // Of such a stage: from now on this rank has the weights whole, until the stage is next run. All of its ranks call
  // it, and it waits for them.
  virtual absl::Status GatherWeights() { return absl::OkStatus(); }
  // The average of the weights that it trains, as far as this rank has it: a state of its own; null: none.
  virtual Stateful* average() { return nullptr; }
  // Exchanges those weights, at this rank and whole, for their average; a second call undoes the first. As
  // GatherWeights() of all ranks, where they have parts; not while it is run.
  virtual absl::Status SwapAverage() { return absl::OkStatus(); }
  // Adds to the metrics what follows from the columns that it writes: for those that another process put.
  virtual absl::Status Report(const Rows& /*written*/, StepMetrics& /*metrics*/) const { return absl::OkStatus(); }
};

class RemoteStages;

// Runs stages on one partition of a dock. Errors name the stage and the rows that it was working on, whose lease is
// then given back. Once all stages are added, several threads may run one each.
class StageRunner {
 public:
  // Both must outlive the runner.
  StageRunner(Dock& dock, std::string partition) : dock_(dock), partition_(std::move(partition)) {}

  // Stages that it carries are carried out by other processes, on the rows that this one takes for them. Before any
  // stage is run; it must outlive the runner.
  void SetRemote(RemoteStages* remote) { remote_ = remote; }

  // Registers the stage as a consumer, or as a checkpointed one, which then completes rows under the numbers of steps.
  // `change` changes the options of the consumer.
  absl::Status Add(
      const Stage& stage, bool checkpointed = false,
      const std::function<void(ConsumerOptions&)>& change = [](ConsumerOptions&) {});

  struct Options {
    // Until when to wait for the units; in the past where a program runs its stages in sequence, and units that are
    // not there would never come.
    absl::Time deadline = absl::InfinitePast();
    // How often in a row a stage may requeue a group.
    int most_requeues = 4;
  };
  // Takes `units` rows, or groups for a stage of groups, in one call, runs the stage on them, and puts what it writes,
  // or completes them if it writes nothing; then again on the groups that it requeued. Returns the number of rows that
  // it dropped. FailedPrecondition, or DeadlineExceeded after a wait, with what is missing, if the units are not ready.
  //
  // Internal, naming the column and the row, if the stage writes a number that is not finite, and naming the group if
  // it drops or requeues one that it was not given; the stage if it requeues too often.
  absl::StatusOr<int64_t> Run(Stage& stage, int64_t units, StageContext& context, const Options& options);
  absl::StatusOr<int64_t> Run(Stage& stage, int64_t units, StageContext& context) {
    return Run(stage, units, context, Options());
  }

  // What one take came to.
  struct Round {
    int64_t dropped_rows = 0;
    int64_t requeued_units = 0;  // which are ready again
  };
  // Takes what is ready for the stage; nothing: nothing is.
  using TakeMore = std::function<absl::StatusOr<std::optional<Taken>>()>;
  // Runs the stage on what was taken for it, and, with `take_more`, on what is ready while it works, if it asks for
  // that. After an error, which does not name the stage, the rows that it has not put are still leased; so are those
  // that it has taken meanwhile and left.
  absl::StatusOr<Round> RunTaken(Stage& stage, const Taken& taken, StageContext& context,
                                 const TakeMore& take_more = nullptr);

  // The two halves of RunTaken(), for a stage that several processes compute together, each on all of the rows, and of
  // which one has their results: between the two they learn whether all of them could.
  struct Computed {
    StageOutput output = {};  // with the columns of the rows that are kept
    std::vector<RowId> kept = {}, dropped = {}, requeued = {};
    size_t requeued_groups = 0;
  };
  // Runs the stage and checks what it wrote. Only where `puts` is what it publishes early put. Errors are those of
  // RunTaken(); it does not throw.
  absl::StatusOr<Computed> Compute(Stage& stage, const Taken& taken, StageContext& context, bool puts,
                                   const TakeMore& take_more = nullptr);
  // Puts it, and completes, drops or gives back the rows. May throw std::bad_alloc.
  absl::StatusOr<Round> Settle(const Stage& stage, const Taken& taken, Computed computed, const StageContext& context);

  const std::string& partition() const { return partition_; }

 private:
  absl::StatusOr<Round> RunOnce(Stage& stage, int64_t units, StageContext& context, absl::Time deadline);
  // The rows of these groups that are not among `rows`.
  absl::StatusOr<std::vector<RowId>> OthersOf(const std::vector<GroupId>& groups, const std::vector<RowId>& rows);
  absl::StatusOr<Computed> RunStage(Stage& stage, const Taken& taken, StageContext& context, bool puts,
                                    const TakeMore& take_more);
  absl::Status PutEarly(const Stage& stage, const Taken& taken, std::span<const size_t> indexes, FillRequest put,
                        bool puts, std::vector<bool>& early);
  absl::Status DropEarly(const Stage& stage, const Taken& taken, std::span<const size_t> indexes, bool puts,
                         std::vector<bool>& early);
  // Gives the context what puts rows of `taken` early, where this process `puts`, and notes them in `early`.
  void LetPublish(const Stage& stage, const Taken& taken, bool puts, std::vector<bool>& early, StageContext& context);

  // The step under which the stage completes rows.
  int64_t StepOf(const Stage& stage, const StageContext& context) const {
    return checkpointed_.contains(stage.consumer().name) ? context.step : kNoStep;
  }

  Dock& dock_;
  const std::string partition_;
  std::set<std::string> checkpointed_;
  RemoteStages* remote_ = nullptr;
};

}  // namespace tdock::trainer
