// A group whose ranks add up, divide and put together tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/collective/collective.h"
#include "tdock/buffer.h"

namespace tdock::runtime {

// Tensors are contiguous, and of the same dtype and number of elements at all ranks. Results are equal to the bit at
// all ranks, and from run to run. Sums are in the tensors' own dtype, which is float32 or float64. What a failed
// operation has written to is undefined.
class TensorCollective : public Collective {
 public:
  // In place: of each tensor the sum of the ranks', at all of them. Many at once cost little more than one of their
  // size.
  virtual absl::Status AllReduceSum(std::span<const at::Tensor> tensors, absl::Time deadline) = 0;
  absl::Status AllReduceSum(const at::Tensor& tensor, absl::Time deadline) {
    return AllReduceSum(std::span(&tensor, 1), deadline);
  }
  // `parts`, [size(), n], has a part for each rank; `own`, [n], becomes the sum of the ranks' parts for this one.
  virtual absl::Status ReduceScatterSum(const at::Tensor& parts, const at::Tensor& own, absl::Time deadline) = 0;
  // `parts`, [size(), n], becomes the ranks' `own`, [n]. Of any dtype.
  virtual absl::Status AllGather(const at::Tensor& own, const at::Tensor& parts, absl::Time deadline) = 0;
  // The bytes of each rank, which need not be as many, at all of them.
  virtual absl::StatusOr<std::vector<Buffer>> AllGatherBytes(Buffer bytes, absl::Time deadline) = 0;

  // Leaves the group because of an error of this rank: operations of the others, and later ones of this, fail. May be
  // called by any thread at any time.
  virtual void Leave() = 0;
};

}  // namespace tdock::runtime
