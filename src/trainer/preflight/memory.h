// How much memory a run will need at its peak.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "data/encode.h"
#include "trainer/loop/inputs.h"
#include "trainer/loop/recipe.h"

namespace tdock::trainer {

struct MemoryPart {
  std::string name;  // "optimizer state"
  int64_t bytes;
};

struct MemoryEstimate {
  std::string where;  // "cpu": the resident set of the process; "cuda:0": the memory of that device
  std::string when;   // the part of the run that needs most: "training"
  std::vector<MemoryPart> parts;
  int64_t peak = 0;  // their sum
  // What a checkpoint takes beside them on the CPU, in the steps in which it is written; 0 where none is before the
  // end.
  int64_t while_saving = 0;
  // What the process can have there in all; nothing if the system does not tell.
  std::optional<int64_t> available;
  // A sentence where the peak is more than that, with the keys that lower it; else empty.
  std::string warning;
};

// Of a run with these inputs, before it begins. `samples` are those that a step may have, the longest of all among
// them; not empty. What passes through the model is laid out as it will be and passed through a model without data, of
// the same code; responses that are generated have their greatest length. Weights, gradients and the optimizer's state
// are counted. May throw.
absl::StatusOr<MemoryEstimate> EstimateMemory(Recipe& recipe, const RunInputs& inputs,
                                              std::span<const data::EncodedSample> samples, Env& env);

}  // namespace tdock::trainer
