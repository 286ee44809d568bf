// Finds out what a folder with weights is.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "trainer/merge/weight_source.h"

namespace tdock::trainer {

struct OpenOptions {
  std::string backend = "auto";    // "auto": as the folder looks; "tdock", "fsdp", "megatron"
  std::string base = {};           // the model that adapters are merged into; empty: that which they name
  std::string python = "python3";  // which reads pickles
  bool is_value_model = false;     // --is-value-model of verl's merger
};

// The weights in a folder, with the head as config.json says (ApplyTying()): a run, of which the newest checkpoint is
// taken, or where it has none the model that it has left; a checkpoint; a model; adapters; shards of FSDP; a
// distributed checkpoint of Megatron. NotFound if it is none of them, InvalidArgument for another backend,
// Unimplemented for value models of Megatron.
absl::StatusOr<WeightSource> OpenSource(Env& env, const std::string& folder, const OpenOptions& options = {});

}  // namespace tdock::trainer
