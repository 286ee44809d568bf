// A group whose ranks are processes with a GPU each: c10d's ProcessGroupNCCL.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/collective/tensor/tensor_collective.h"
#include "runtime/rendezvous/rendezvous.h"

namespace tdock::runtime {

// Why this process has no NCCL; OK if it has. It needs a build of torch for CUDA with the NCCL that the plugin was
// compiled for, and the plugin beside the program. Loads both on the first call. Thread-safe.
absl::Status CheckNccl();

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

// Connects the ranks with each other, all of which must call it, with different GPUs. Unimplemented if CheckNccl()
// fails. Operations wait until they are over on the GPU. Otherwise as OpenGlooCollective().
absl::StatusOr<std::unique_ptr<TensorCollective>> OpenNcclCollective(const NcclOptions& options, absl::Time deadline);

// The interface of the plugin, under these names.
inline constexpr char kCheckNccl[] = "tdock_check_nccl";
inline constexpr char kOpenNccl[] = "tdock_open_nccl";
using CheckNcclFunction = void(absl::Status* checked);
using OpenNcclFunction = void(const NcclOptions& options, absl::Time deadline,
                              absl::StatusOr<std::unique_ptr<TensorCollective>>* opened);

}  // namespace tdock::runtime
