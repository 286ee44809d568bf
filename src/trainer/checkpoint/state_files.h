// A State in a folder: its texts in state.json, its tensors in state.safetensors.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "trainer/checkpoint/state.h"

namespace tdock::trainer {

absl::Status WriteState(Env& env, const std::string& folder, const State& state);

// InvalidArgument, naming the file, for anything that WriteState() does not write. Tensors are views of the mapped
// file, which they keep alive.
absl::StatusOr<State> ReadState(Env& env, const std::string& folder);

// The texts alone.
absl::StatusOr<State> ReadStateTexts(Env& env, const std::string& folder);

}  // namespace tdock::trainer
