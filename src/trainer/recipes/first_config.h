// A configuration to begin with.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/env.h"

namespace tdock::trainer {

// A commented configuration of the recipe (sft or grpo) that trains the model in the folder `model` on the file or
// folder `data`, and runs as it is: with the form that the data were recognised as, a template where they need one, and
// lengths that fit both. InvalidArgument for an unknown recipe; other errors are those of reading the tokenizer,
// config.json and the data. Reads up to 1,000 samples, and no weights.
absl::StatusOr<std::string> FirstConfig(Env& env, absl::string_view recipe, const std::string& model,
                                        const std::string& data);

}  // namespace tdock::trainer
