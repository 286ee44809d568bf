// Asynchronous training: prompts are answered while earlier ones are trained on.
//
//            ┌──────── on threads of their own, all the time ────────┐  ┌─ step by step, in the run's own thread ─┐
//   data ──► │ feeder ─► rollout ─► reward ─► ref ─► advantage        │─►│ (values ─► old_log_prob ─►) … ─► actor  │
//            └──────▲────────────────────────────────────────────────┘  └────────────────────┬────────────────────┘
//                   └───────────────────────── weights, after each step ─────────────────────┘
//
// The stages on threads may take more while they work, which the rollout does as answers end.
//
// A step takes the groups that are ready, as many as it trains on, in the order of their ages and then of their rows.
// There are never more prompts on the dock than those of `steps_ahead` steps beside the one that trains, which bounds
// how old the weights can be that answered them; what is older than the consumer of the first stage of a step allows,
// the dock sends back or drops when it is taken.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "trainer/loop/executors.h"
#include "trainer/loop/feeder.h"

namespace tdock::trainer {

// The name in the timeline of the run's own thread, which waits for what a step trains on.
inline constexpr char kStepLane[] = "step";

// How many stages of a plan, from the first on, do not wait for a step: those that neither need the weights that are
// trained, but for the first, nor the other rows of a step, and have no state.
size_t StreamedStages(std::span<const std::unique_ptr<Stage>> stages);

// Adds to `reads`, those of the stage with this number, what makes all stages of a step get the same rows: for the
// first after the streamed ones, what stages after it read that the streamed ones write; for those after it, what it
// writes, because rows may have become ready since it took its own. For the streamed ones, nothing.
void AddNeedsOfStep(std::span<const std::unique_ptr<Stage>> stages, size_t number, std::vector<std::string>& reads);

class Streaming {
 public:
  struct Options {
    int64_t step_groups = 0;   // that a step trains on
    int64_t batch_groups = 0;  // that are fed together
    int64_t most_groups = 0;   // on the dock, at least batch_groups
    bool limited = false;
    int64_t steps = 0;       // that are to come, if limited: no more is fed than they need
    bool on_threads = true;  // otherwise everything is done by RunStep()
    // Gives the first stage the newest weights: called before anything is answered, and after each step before anything
    // is fed in its place. May throw.
    std::function<absl::Status()> serve_weights = [] { return absl::OkStatus(); };
  };
  // What `run` and `feeder` refer to must outlive this.
  Streaming(const StageRun& run, Feeder& feeder, const Options& options);
  ~Streaming();

  // Begins to feed and to answer. May throw.
  absl::Status Start();
  bool started() const { return started_; }

  // The stages of a step, on the next groups, of which the dock has been told that the first stage takes whole groups;
  // fewer at the end of the data, perhaps none. Figures of the stages before it are of what they did since the last
  // step. Cancelled by context.check_stop while it waits, but not once it trains.
  //
  // DeadlineExceeded if nothing comes for trainer.stage_timeout, with what each stage does and what the dock says; or
  // if a stage shows no sign of progress for as long, with its name and its rows.
  absl::Status RunStep(StageContext& context);
  // Whether there is, or may come, anything for another step.
  absl::StatusOr<bool> HasMore();

  // Calls `body` while nothing is fed, so that the feeder's state and the dock belong together.
  absl::Status WhileNotFeeding(const std::function<absl::Status()>& body) TDOCK_EXCLUDES(mu_);
  // Ends the threads. What they were working on is ready again.
  absl::Status Stop() TDOCK_EXCLUDES(mu_);

  // For people.
  std::string Describe() const;

 private:
  void Feed() TDOCK_EXCLUDES(mu_);
  // Feeds what there is room for; false: nothing more is to be fed now.
  absl::StatusOr<bool> FeedOnce() TDOCK_EXCLUDES(mu_);
  // One take of each stage before a step, if there is anything to take; whether there was.
  absl::StatusOr<bool> PumpOnce(StageContext& context);
  absl::StatusOr<std::optional<Taken>> NextStep(StageContext& context);
  absl::Status TrainOn(const Taken& taken, StageContext& context);
  // One of its stages, on `rows` rows, from which it subtracts those that are dropped.
  absl::Status RunOne(size_t number, const Taken& taken, StageContext& context, int64_t& rows);
  // Of a step that is not over after an error, which ends the run.
  void SetTraining(bool training) TDOCK_EXCLUDES(mu_);
  absl::Status RunAgain(Stage& stage, int64_t groups, StageContext& context, int64_t& rows);
  void ReportStaleness(const Rows& rows, StepMetrics& metrics) const;
  absl::Status FeederStatus() TDOCK_EXCLUDES(mu_);
  absl::Status CheckThreads() TDOCK_EXCLUDES(mu_);

  const StageRun run_;
  Feeder& feeder_;
  const Options options_;
  const size_t streamed_;  // stages
  bool started_ = false;
  std::vector<std::unique_ptr<StepMetrics>> metrics_;  // of each of them since the last step
  StepMetrics fed_metrics_;
  std::unique_ptr<StageThreads> threads_;
  std::vector<StageTask> pumped_;
  std::thread feeding_;

  Mutex mu_;  // held while it is fed
  CondVar changed_;
  int64_t steps_left_ TDOCK_GUARDED_BY(mu_) = 0;
  bool exhausted_ TDOCK_GUARDED_BY(mu_) = false;
  bool training_ TDOCK_GUARDED_BY(mu_) = false;  // a step: what is fed in its place is answered by the weights after it
  bool stopping_ TDOCK_GUARDED_BY(mu_) = false;
  absl::Status failed_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::trainer
