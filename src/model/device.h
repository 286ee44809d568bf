// Where tensors live.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "absl/status/statusor.h"

namespace tdock::model {

// "cpu", "cuda" or "cuda:1". InvalidArgument for anything else, and for a GPU that is not there, saying what is.
absl::StatusOr<at::Device> ParseDevice(const std::string& text);

// Whether at least one CUDA device can be used.
bool HasCuda();

}  // namespace tdock::model
