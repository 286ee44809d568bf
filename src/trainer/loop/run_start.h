// Where a run begins: in a new folder, or in that of a run that was ended, with its newest checkpoint.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "core/base/file_lock.h"
#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/loop/sections.h"

namespace tdock::trainer {

struct RunStart {
  bool is_there = false;           // trainer.run_dir is that of this run
  std::unique_ptr<FileLock> lock;  // of a folder that is there
  std::string checkpoint;          // the folder of the checkpoint to go on from; empty: from the beginning
  Manifest manifest;               // its
  bool of_another_run = false;     // whether it is in another folder than trainer.run_dir
};

// Follows trainer.run_dir and trainer.resume_mode, and locks the folder if it is there; of what is in it, it removes
// only checkpoints that are not finished.
// `config_yaml` is the whole configuration of this run: what has no checkpoint yet is begun anew only if it was the
// same, but for keys that change nothing that is computed.
//
// AlreadyExists if another process uses the folder, naming it, if the run has ended, or if the folder holds something
// else; DataLoss, naming the checkpoint before it, if the newest is damaged; the errors of VerifyCheckpoint().
absl::StatusOr<RunStart> FindStart(Env& env, const TrainerSection& section, const std::string& config_yaml);

// True if FindStart() finds a checkpoint to go on from, unless it fails. Locks and changes nothing.
bool GoesOn(Env& env, const TrainerSection& section);

// Locks the folder of a run: the error names who has it.
absl::StatusOr<std::unique_ptr<FileLock>> LockRun(const std::string& run_dir);

// Removes the files that a process that was killed was writing, and the checkpoints after the one to go on from.
absl::Status TidyRun(Env& env, const std::string& run_dir, const RunStart& start);

}  // namespace tdock::trainer
