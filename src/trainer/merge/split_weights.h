// The weights of a checkpoint in which each of several ranks has saved the parts that it has (actor.zero_stage=3).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "trainer/checkpoint/state.h"
#include "trainer/merge/weight_source.h"

namespace tdock::trainer {

// Whether a checkpoint with this state has its weights in parts, and not as a model.
bool HasSplitWeights(const State& texts);

// Where these are of adapters, they are merged into the model in `base`, which the checkpoint does not name;
// InvalidArgument if that is empty. InvalidArgument names parameters and numbers of which no rank has a part, and ranks
// whose files are missing or of another moment.
absl::StatusOr<WeightSource> OpenSplitWeights(Env& env, const std::string& folder, const State& texts,
                                              const std::string& base);

}  // namespace tdock::trainer
