// Where tensors live.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace tdock::model {

// "cpu", "cuda" or "cuda:1". InvalidArgument for anything else, and for a GPU that is not there, saying what is.
absl::StatusOr<at::Device> ParseDevice(const std::string& text);

// How many threads work on different samples at the same time: `asked`, or where that is 0 one for each core, and one
// where the device is a GPU.
int WorkerThreads(int64_t asked, const at::Device& device);

// Whether at least one CUDA device can be used.
bool HasCuda();

}  // namespace tdock::model
