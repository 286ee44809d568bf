// The tensors of a unit of a decoder, of which each rank has a part.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/collective/tensor/tensor_collective.h"
#include "trainer/stages/shard.h"

namespace tdock::trainer {

// Cuts each tensor among the ranks as ShardOf() says. What ranks send each other has a slot for each of them, in which
// its parts follow each other; the parts of all ranks take as much room. Not thread-safe.
class ShardedUnit {
 public:
  // Tensors keep their numbers; `group` outlives this.
  ShardedUnit(std::vector<at::Tensor> tensors, runtime::TensorCollective& group);

  // This rank's numbers of a tensor, flat.
  const Shard& shard(size_t i) const { return shards_[i]; }

  // Copies this rank's numbers of each tensor, which may then be released. The copies are what Gather() gives to others
  // from then on; a later call changes them.
  void KeepParts();
  // The copy of one of the tensors, flat.
  at::Tensor Kept(const at::Tensor& tensor) const;
  // Gives back the memory of the tensors, whose numbers are then undefined; they keep their shapes.
  void Release();
  bool is_whole() const { return is_whole_; }
  // Every rank gets all numbers of all tensors, from each its part: those that KeepParts() copied, or else those in the
  // tensors.
  absl::Status Gather(absl::Time deadline);

  // This rank's parts of the sums over all ranks of `gradients`, one for each tensor, in `dtype`; none: zeros. Added to
  // `sums`, [slot_size()]; see PartOf().
  absl::Status AddScattered(std::vector<at::Tensor> gradients, const at::Tensor& sums, absl::Time deadline);
  int64_t slot_size() const { return slot_size_; }
  // The numbers of tensor i in a slot.
  at::Tensor PartOf(const at::Tensor& slot, size_t i) const { return slot.narrow(0, offsets_[i], shards_[i].size); }

 private:
  void Allocate();
  at::Tensor NewSlot() const;
  at::Tensor NumbersIn(const at::Tensor& slot, size_t i, int64_t count) const;  // of a tensor, in a slot's bytes
  void FillSlot(const at::Tensor& slot) const;

  std::vector<at::Tensor> tensors_;
  runtime::TensorCollective& group_;
  std::vector<Shard> shards_;
  std::vector<int64_t> rooms_, offsets_;  // of a tensor in a slot, in numbers
  std::vector<int64_t> byte_offsets_;     // the same in bytes
  int64_t slot_size_ = 0, slot_bytes_ = 0;
  at::Tensor own_;                 // bytes of this rank's slot, once they are kept
  std::vector<at::Tensor> parts_;  // views of it
  bool is_whole_ = true;
};

}  // namespace tdock::trainer
