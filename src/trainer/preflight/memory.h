// How much memory a run will need at its peak.
#pragma once

#include <array>
#include <cstdint>
#include <map>
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

// What each of several ranks that train a model together keeps of it.
struct TrainingShare {
  std::string role;      // "actor"
  std::string zero_key;  // "actor.zero_stage"
  int64_t ranks = 1;
  int64_t zero_stage = 0;      // of the run
  int64_t micro_batches = 0;   // of a mini-batch, which are dealt to the ranks
  std::string micro_key = {};  // that says how large they are
  struct Bytes {
    int64_t weights = 0, gradients = 0, moments = 0;
    int64_t together() const { return weights + gradients + moments; }
  };
  std::array<Bytes, 4> bytes = {};  // by stage
};

struct MemoryEstimate {
  std::string where;       // "cpu": the resident set of the process; "cuda:0": the memory of that device
  std::string arithmetic;  // dtype of activations, and instructions of the kernels: "bfloat16 by avx512_bf16"
  std::string when;        // the part of the run that needs most: "training"
  std::vector<MemoryPart> parts;
  int64_t peak = 0;  // their sum
  // What a checkpoint takes beside them on the CPU, in the steps in which it is written; 0 where none is before the
  // end.
  int64_t while_saving = 0;
  // What the process can have there in all; nothing if the system does not tell.
  std::optional<int64_t> available;
  // Of the roles that several ranks train; the figures above are then those of rank 0, with the stages of the run.
  std::vector<TrainingShare> shares = {};
  // A sentence where the peak is more than that, with the keys that lower it; else empty.
  std::string warning;
};

// Of a run with these inputs, before it begins. `samples` are those that a step may have, the longest of all among
// them; not empty. What passes through the model is laid out as it will be and passed through a model without data, of
// the same code; responses that are generated have their greatest length. Weights, gradients and the optimizer's state
// are counted. `ranks` are those that train a role together, "actor" or "critic"; none: one process. Of several, the
// estimate is that of the first, which also writes checkpoints. May throw.
absl::StatusOr<MemoryEstimate> EstimateMemory(Recipe& recipe, const RunInputs& inputs,
                                              std::span<const data::EncodedSample> samples, Env& env,
                                              const std::map<std::string, int64_t>& ranks = {});

}  // namespace tdock::trainer
