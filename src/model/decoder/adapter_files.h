// Low-rank adapters in the PEFT layout: adapter_config.json and adapter_model.safetensors.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "core/base/env.h"
#include "model/decoder/decoder.h"

namespace tdock::model {

// Adds the adapters of a folder to the decoder, which must have none. A dropout is kept, for training. As strict as
// LoadCheckpoint(): the error lists the missing, the unexpected and the wrongly shaped names. Modules that
// are saved with the adapters, such as a value head, are read as well. After an error the decoder is unchanged.
absl::Status LoadAdapters(Env& env, const std::string& folder, Decoder* decoder);

// Reads them into the adapters, of the same shapes, that the decoder has already, in place: whatever refers to its
// parameters sees them. As strict; after an error some may be replaced.
absl::Status ReloadAdapters(Env& env, const std::string& folder, Decoder* decoder);

// Writes the adapters, and the modules saved with them, into `folder`, which is created if it is missing;
// adapter_config.json last. `base_model` is the folder or name of the model that they adapt, as `peft` looks it up.
// FailedPrecondition if there are no adapters.
absl::Status SaveAdapters(Env& env, const std::string& folder, const Decoder& decoder, const std::string& base_model);

}  // namespace tdock::model
