// A group whose ranks are processes with a GPU each: c10d's ProcessGroupNCCL.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/collective/tensor/tensor_collective.h"
#include "runtime/rendezvous/rendezvous.h"

namespace tdock::runtime {

// Whether this build has it: one with a CUDA build of libtorch, beside which the headers of NCCL and CUDA are
// installed, as the packages that such a libtorch needs do.
bool HasNccl();

struct NcclOptions {
  // Where the processes find each other. Must outlive the group.
  Rendezvous& rendezvous;
  // The same at all ranks, and no other group's.
  std::string name = {};
  int rank = 0;
  int size = 1;
  c10::Device device = c10::Device(c10::kCUDA, 0);  // of this rank alone
  absl::Duration timeout = absl::Minutes(10);       // of an operation that has no deadline of its own
};

// Connects the ranks with each other, all of which must call it, with different GPUs. Unimplemented without HasNccl().
// Operations wait until they are over on the GPU. Otherwise as OpenGlooCollective().
absl::StatusOr<std::unique_ptr<TensorCollective>> OpenNcclCollective(const NcclOptions& options, absl::Time deadline);

}  // namespace tdock::runtime
