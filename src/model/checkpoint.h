// Model directories in the Hugging Face layout: config.json, model.safetensors, generation_config.json.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "model/decoder.h"

namespace tdock::model {

// Strict: every weight that the configuration asks for must be there in its shape, and no other may be; the error lists
// the missing, the unexpected and the misshapen names. Weights are converted to float32. NotFound names a file that is
// not there, Unimplemented what the decoder does not have. Throws c10::Error where memory runs out.
absl::StatusOr<Decoder> LoadCheckpoint(Env& env, const std::string& folder, const at::Device& device);

// Writes the files into `folder`, which is created where it is missing. Each file appears whole or not at all.
absl::Status SaveCheckpoint(Env& env, const std::string& folder, const Decoder& decoder);

}  // namespace tdock::model
