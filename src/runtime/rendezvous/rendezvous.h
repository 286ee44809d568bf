// How the processes of a run find each other: a store of texts at MASTER_ADDR:MASTER_PORT, which is c10d's TCPStore, as
// for programs in PyTorch. Rank 0 serves it, unless an agent that started the ranks, such as torchrun's, does.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "runtime/launch/rank_environment.h"

namespace c10d {
class Store;
}

namespace tdock::runtime {

// Whoever reaches the address can read and write it: it is for networks that only the run's machines share.
// Thread-safe.
class Rendezvous {
 public:
  // Unavailable if the port is taken, or if rank 0 is not reached at the address in time. The store ends with the
  // object of the process that serves it.
  static absl::StatusOr<std::unique_ptr<Rendezvous>> Open(const RankEnvironment& environment, absl::Duration timeout);
  virtual ~Rendezvous() = default;

  // Of this start of the ranks: what an earlier one has published under the same key is not found.
  virtual absl::Status Publish(absl::string_view key, absl::string_view value) = 0;
  // Waits until it is there. DeadlineExceeded names the key.
  virtual absl::StatusOr<std::string> Await(absl::string_view key, absl::Duration timeout) = 0;

  // The store itself, for the process groups of c10d: with a connection of its own, because what waits holds it, and
  // the keys of this start only. Unavailable if rank 0 is gone.
  virtual absl::StatusOr<c10::intrusive_ptr<c10d::Store>> NewStore() = 0;
};

// The address of this machine from which it reaches MASTER_ADDR, and so at which the other ranks reach it: "10.0.0.7".
// Unavailable if the name has no address, or if there is no way to it, as with an interface that is down. May wait for
// the name service.
absl::StatusOr<std::string> AddressTowardsRank0(const RankEnvironment& environment);

}  // namespace tdock::runtime
