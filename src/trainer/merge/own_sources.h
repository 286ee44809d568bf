// Weights in the folders that this program, and Python `transformers` and `peft`, write.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "trainer/merge/weight_source.h"

namespace tdock::trainer {

// A folder with config.json and safetensors.
absl::StatusOr<WeightSource> OpenModelFolder(Env& env, const std::string& folder);

// A folder with adapter_config.json, merged into the model in `base`; empty: that which adapter_config.json names. The
// numbers are those of Decoder::Merged(), if the model is not in bfloat16 or float16 while it is trained.
absl::StatusOr<WeightSource> OpenAdapters(Env& env, const std::string& folder, const std::string& base);

// A checkpoint of a run, written by any number of ranks, whose files are as its manifest says: a model, adapters, or
// the parts of the weights that each rank has. DataLoss names a file that has changed, InvalidArgument what is missing.
absl::StatusOr<WeightSource> OpenCheckpoint(Env& env, const std::string& folder, const std::string& base);

}  // namespace tdock::trainer
