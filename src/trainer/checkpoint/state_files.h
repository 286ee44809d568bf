// A State in a folder: its texts in state.json, its tensors in state.safetensors. Where several ranks have parts of it,
// those of rank R of N, from 1 on, are in state-rank-R-of-N.json and .safetensors; rank 0 has the rest.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "trainer/checkpoint/state.h"

namespace tdock::trainer {

absl::Status WriteState(Env& env, const std::string& folder, const State& state);

// The part of a rank, 1 to ranks - 1.
absl::Status WriteRankState(Env& env, const std::string& folder, int rank, int ranks, const State& state);

// With the tensors of all ranks. InvalidArgument, naming the file, for anything that WriteState() does not write, for a
// rank that is missing, and for one that has another text than rank 0 under the same name, as it has after another
// step. Tensors are views of the mapped files, which they keep alive.
absl::StatusOr<State> ReadState(Env& env, const std::string& folder);

// The files that have the tensors, those of rank 0 first. The same errors, but for what is in these files.
absl::StatusOr<std::vector<std::string>> StateTensorFiles(Env& env, const std::string& folder);

// The texts alone.
absl::StatusOr<State> ReadStateTexts(Env& env, const std::string& folder);

}  // namespace tdock::trainer
