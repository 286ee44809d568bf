// Stages that another process carries out: the run waits for what they write.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tdock/clock.h"
#include "tdock/dock.h"
#include "trainer/stages/stage.h"

namespace tdock::trainer {

struct AwaitOptions {
  Clock& clock;
  absl::Duration timeout;
  RowId first_row = 0;  // of the step
  // Asked several times a second; its error ends the wait.
  std::function<absl::Status()> check_stop = [] { return absl::OkStatus(); };
};

// Waits until every row of the partition from AwaitOptions::first_row on has the columns that `stage` writes, whoever
// puts them, and reports them (Stage::Report). Returns how many rows there are by then: the other process may
// drop some. The stage's consumer must be registered.
//
// Errors name the stage. DeadlineExceeded says how many rows were done, what the consumer could take, and whether any
// process ever took rows; Internal names a column and a row with a number that is not finite; others are the dock's.
absl::StatusOr<int64_t> AwaitStage(Dock& dock, const std::string& partition, const Stage& stage, StageContext& context,
                                   const AwaitOptions& options);

}  // namespace tdock::trainer
