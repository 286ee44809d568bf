// The error for a file of data that does not exist.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "core/base/env.h"

namespace tdock::data {

// NotFound for `path`, with what may help: the names in its folder that are most like it, or the folder that is missing
// too. A path that looks like the name of a data set on the Hugging Face hub is told how to download it.
absl::Status MissingFile(Env& env, const std::string& path);

}  // namespace tdock::data
