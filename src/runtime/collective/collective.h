// What the ranks of a group do together: each calls the same operations in the same order.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tdock/buffer.h"

namespace tdock::runtime {

// One rank's end of a group of size() ranks, numbered from 0. An operation returns at a rank once that rank has its
// result, so that others may still be in it. One call at a time.
//
// An error ends the group: every later call fails, and so do those that wait, because nobody knows how far the others
// have come. DeadlineExceeded names the operation, and the ranks that had not come to it; Unavailable a connection that
// was lost, or a rank that has left; Internal ranks that do different operations, where that is seen. In a group of one
// rank everything returns at once.
class Collective {
 public:
  virtual ~Collective() = default;  // leaves the group

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Returns the bytes of rank `root` at every rank; what the others pass is ignored.
  virtual absl::StatusOr<Buffer> Broadcast(Buffer bytes, int root, absl::Time deadline) = 0;
  // Returns the largest of the ranks' values at every rank.
  virtual absl::StatusOr<int64_t> AllReduceMax(int64_t value, absl::Time deadline) = 0;
  // Returns when every rank has called it.
  virtual absl::Status Barrier(absl::Time deadline) = 0;
};

}  // namespace tdock::runtime
