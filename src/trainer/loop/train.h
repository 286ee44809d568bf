// The loop of training, which every recipe shares. One step:
//
//   data ─► feed ─► stage ─► stage ─► … ─► the stage that trains        in sequence, on a dock inside this process
//                                                                       unless other processes share it
//
// and every few steps the evaluations; at the end the checkpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "trainer/loop/inputs.h"
#include "trainer/loop/recipe.h"
#include "trainer/loop/run_context.h"

namespace tdock::trainer {

struct RunResult {
  std::string run_dir;
  std::string checkpoint;  // the folder with the model that is left for use; elsewhere if run_dir could not be written
  int64_t steps = 0;
  std::string ended;  // why: "all 200 steps", "the end of epoch 3", "val/accuracy >= 0.3"
  // Of the validation before the first step and after the last; empty where there was none.
  Metrics first, last;
  Metrics saved;  // the same of the folder that is left for use, loaded again
};

// A run that was prepared successfully, and has its folder.
class TrainingRun {
 public:
  virtual ~TrainingRun() = default;

  // Trains, and leaves a checkpoint in the run directory, or beside it or in the working folder if nothing can be
  // written there: see RunResult::checkpoint. Call it once. An error names the recipe and the step, and what failed in
  // it: the stage and the samples, or the file; everything written before stays readable, and the report says how far
  // the run got. Where the logs could not be written, the error says where the weights were saved. A run that is told
  // to stop is Cancelled, between two steps or while it waits for another process. Does not throw.
  virtual absl::StatusOr<RunResult> Train() = 0;
};

// A run of what LoadRunInputs() has read for the recipe. Creates the run directory; nothing is written before. A dock
// that cannot be reached, a stage that other processes cannot carry out and a folder that is in use are refused.
//
// `reward` scores instead of the configuration's rules, if it is given. Everything must outlive the run. Does not
// throw.
absl::StatusOr<std::unique_ptr<TrainingRun>> PrepareRun(Recipe& recipe, RunInputs inputs, RunContext context,
                                                        reward::Reward* reward = nullptr);
// The same, and reads the inputs first: a run that cannot work (a missing device, an unreadable model, data without
// what the recipe needs, sequences that are longer than the model's positions) is refused before anything is written.
absl::StatusOr<std::unique_ptr<TrainingRun>> PrepareRun(Recipe& recipe, RunContext context,
                                                        reward::Reward* reward = nullptr);

}  // namespace tdock::trainer
