// A group whose ranks are processes, which send each other bytes over TCP: c10d's ProcessGroupGloo.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/collective/tensor/tensor_collective.h"
#include "runtime/rendezvous/rendezvous.h"

namespace tdock::runtime {

struct GlooOptions {
  // Where the processes find each other. Must outlive the group.
  Rendezvous& rendezvous;
  // The same at all ranks, and no other group's.
  std::string name = {};
  int rank = 0;
  int size = 1;
  // The address of this machine at which the others reach this process; empty: that of the host's name.
  std::string host = {};
};

// Connects the ranks with each other, all of which must call it. DeadlineExceeded names those that did not come in
// time. The connections are neither encrypted nor authenticated: they are for networks that only the run's machines
// share.
//
// What the group's errors say of missing ranks is what the process that serves the rendezvous knows; if it is gone,
// they say that instead.
//
// Tensors on a GPU go through the memory of the host. An error of one rank, and Leave(), close the connections of all
// with it, so that what waits at any rank, its own included, fails within about a second.
absl::StatusOr<std::unique_ptr<TensorCollective>> OpenGlooCollective(const GlooOptions& options, absl::Time deadline);

}  // namespace tdock::runtime
