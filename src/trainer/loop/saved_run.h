// What a checkpoint of a run holds, and whether a run may go on from it.
//
//   state.json, state.safetensors          the state of the run's objects, what the run is made of, how long its logs
//                                          are; state-rank-R-of-N: what other ranks have of that
//   the policy, or its adapters            to the bit: see SaveToGoOn(); without the weights where each rank has a part
//                                          of them, which its state holds
//   partition.bin, partition-sampling.bin  the rows of the run's partition, and those of its rounds, if it has rounds;
//                                          without them where other processes share the dock
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "model/decoder/decoder.h"
#include "tdock/dock.h"
#include "text/tokenizer.h"
#include "trainer/checkpoint/state.h"
#include "trainer/loop/fingerprint.h"
#include "trainer/loop/run_checkpoints.h"
#include "trainer/loop/run_partition.h"
#include "trainer/loop/run_start.h"
#include "trainer/loop/sections.h"
#include "trainer/run_log/run_directory.h"
#include "trainer/stages/remote_stages.h"

namespace tdock::trainer {

// What a checkpoint is made of, at one moment between two changes. What is referred to must live, and tensors stay as
// they are, until it is written.
struct CheckpointParts {
  Env& env;
  State state;
  RemoteStages::WriteParts write_parts = nullptr;  // what other processes have of the state; null: nothing
  const Fingerprint& fingerprint;
  const LogPosition& logs;
  std::shared_ptr<const model::Decoder> policy;
  bool splits_policy = false;  // each rank has a part of its weights, in the state
  const text::Tokenizer& tokenizer;
  const ModelSection& model;
  RunPartition& partition;
  std::string rounds = {};  // the partition of the rounds; empty: there is none
};
absl::StatusOr<CheckpointContents> ContentsOf(CheckpointParts parts);

// Reads the policy of a checkpoint with this state, in place: from files, unless its weights are in the state of the
// stage that trains it, which has them once it is loaded.
absl::Status LoadPolicy(Env& env, const std::string& folder, const State& state, model::Decoder& policy);

// A checkpoint that a run goes on from.
class SavedRun {
 public:
  // Reads the state in it. `start` has a checkpoint, and must outlive the result, as must `env`.
  static absl::StatusOr<SavedRun> Read(Env& env, const RunStart& start);

  // Compares what the run was made of with what this one is made of. FailedPrecondition names what has changed without
  // being among `allowed`, or what must stay until a step is over that the checkpoint is in the middle of; or that the
  // rows of that step are not in it, because the dock is `shared`.
  absl::Status Compare(const Fingerprint& now, std::span<const std::string> allowed, bool shared);

  const State& state() const { return state_; }
  // The instructions that the run computed with; empty if it was saved without them.
  std::string kernels() const;
  // Whether anything has changed since it was saved, or it is of another run; known after Compare().
  bool differs() const { return changed_ || start_.of_another_run; }
  bool changed() const { return changed_; }
  const std::string& folder() const { return start_.checkpoint; }
  int64_t part() const { return start_.manifest.place.part; }  // see CheckpointPlace

  // Whether it holds rows.
  bool HasRows() const;
  // Makes the partition with these options as it was; one of another name than the run's is that of its rounds.
  absl::Status ImportRows(const PartitionOptions& options, RunPartition& partition) const;
  // How long the logs of this run were; empty if they are those of another one.
  absl::StatusOr<LogPosition> Logs() const;

 private:
  SavedRun(Env& env, const RunStart& start, State state) : env_(env), start_(start), state_(std::move(state)) {}

  absl::Status CheckInsideStep(std::span<const std::string> changes, bool shared) const;

  Env& env_;
  const RunStart& start_;
  State state_;
  bool changed_ = false;
};

}  // namespace tdock::trainer
