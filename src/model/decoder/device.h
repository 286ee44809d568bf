// Devices for tensors.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tdock/dtype.h"

namespace tdock::model {

// "cpu", "cuda" or "cuda:1". InvalidArgument for anything else, and for a missing GPU, naming the existing ones.
absl::StatusOr<at::Device> ParseDevice(const std::string& text);

// The dtype to compute in with weights that are stored in `stored`: that dtype if the device is not slower in it than
// in float32, else float32. A CPU has bfloat16 if it has vectors for it, and never float16.
at::ScalarType FastType(DType stored, const at::Device& device);

// Makes this process compute on the CPU with the instructions of that name: see kernels::UseInstructions(), whose
// errors it has. "portable" holds for libtorch, too, if it has not computed anything before; FailedPrecondition if it
// has.
absl::Status UseInstructions(const std::string& name);

// From now on "cuda" is that GPU of this machine, counted anew where there are fewer: for one of several processes
// here. Otherwise it is the first.
void SetDefaultGpu(int index);

// How many threads work on different samples in parallel: `asked`, or if that is 0 one per core, or one if the device
// is a GPU.
int WorkerThreads(int64_t asked, const at::Device& device);

// To be called before several threads compute, by any number of them. MKL's vector functions (exp, log, cos, sqrt, …)
// choose their kernels when one is called for the first time, and for a moment offer a less accurate set to other
// threads: what these computed would have relative errors of up to 3e-4 in float32 and 7e-9 in float64, and not be the
// same in the next run. Every Decoder does it.
void PrepareMath();

// Returns when all that this thread has started on the device has ended.
void AwaitDevice(const at::Device& device);

// Whether at least one CUDA device can be used.
bool HasCuda();

}  // namespace tdock::model
