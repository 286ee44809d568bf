#include "trainer/stages/sharded_unit.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "core/base/status.h"

namespace tdock::trainer {
namespace {

// To where memory of its own would begin.
int64_t RoundUp(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// With a version of its own: what is written through it does not count as a change of `tensor` for passes that have
// kept it.
at::Tensor Unwatched(const at::Tensor& tensor) {
  at::Tensor same = at::empty({0}, tensor.options().requires_grad(false));
  return same.set_(tensor.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

}  // namespace

ShardedUnit::ShardedUnit(std::vector<at::Tensor> tensors, runtime::TensorCollective& group)
    : tensors_(std::move(tensors)), group_(group) {
  for (const at::Tensor& tensor : tensors_) {
    TORCH_CHECK(tensor.is_contiguous(), "a parameter that is not contiguous");
    shards_.push_back(ShardOf(tensor.numel(), group_.rank(), group_.size()));
    rooms_.push_back(ShardRoom(tensor.numel(), group_.size()));
    offsets_.push_back(slot_size_);
    byte_offsets_.push_back(slot_bytes_);
    slot_size_ += rooms_.back();
    slot_bytes_ += rooms_.back() * static_cast<int64_t>(tensor.element_size());
  }
}

void ShardedUnit::KeepParts() {
  at::NoGradGuard no_grad;
  if (tensors_.empty()) return;
  if (!own_.defined()) {
    own_ = NewSlot();
    for (size_t i = 0; i < tensors_.size(); ++i) parts_.push_back(NumbersIn(own_, i, shards_[i].size));
  }
  FillSlot(own_);
}

at::Tensor ShardedUnit::Kept(const at::Tensor& tensor) const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].is_same(tensor)) return parts_.at(i);
  }
  TORCH_CHECK(false, "a tensor that is not of the unit");
}

at::Tensor ShardedUnit::NewSlot() const {
  return at::zeros({slot_bytes_}, tensors_.front().options().dtype(at::kByte).requires_grad(false));
}

at::Tensor ShardedUnit::NumbersIn(const at::Tensor& slot, size_t i, int64_t count) const {
  return slot.narrow(0, byte_offsets_[i], count * static_cast<int64_t>(tensors_[i].element_size()))
      .view(tensors_[i].scalar_type());
}

void ShardedUnit::FillSlot(const at::Tensor& slot) const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    NumbersIn(slot, i, shards_[i].size)
        .copy_(tensors_[i].detach().view({-1}).narrow(0, shards_[i].begin, shards_[i].size));
  }
}

void ShardedUnit::Release() {
  for (const at::Tensor& tensor : tensors_) {
    c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(c10::GetAllocator(storage->device_type())->allocate(0));
    storage->set_nbytes(0);
  }
  is_whole_ = false;
}

// In one piece: the memory of many small ones would not go back to the system.
void ShardedUnit::Allocate() {
  std::vector<int64_t> begins;
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors_) {
    begins.push_back(bytes);
    bytes += RoundUp(static_cast<int64_t>(tensor.numel() * tensor.element_size()));
  }
  const at::Tensor memory = at::empty({bytes}, tensors_.front().options().dtype(at::kByte).requires_grad(false));
  for (size_t i = 0; i < tensors_.size(); ++i) {
    auto keeps = std::make_unique<at::Tensor>(memory);
    void* const data = static_cast<std::byte*>(memory.data_ptr()) + begins[i];
    c10::StorageImpl* const storage = tensors_[i].storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(c10::DataPtr(
        data, keeps.release(), [](void* kept) { delete static_cast<at::Tensor*>(kept); }, tensors_[i].device()));
    storage->set_nbytes(static_cast<size_t>(tensors_[i].numel()) * tensors_[i].element_size());
  }
}

absl::Status ShardedUnit::Gather(absl::Time deadline) {
  at::NoGradGuard no_grad;
  if (tensors_.empty()) return absl::OkStatus();
  at::Tensor own = own_;
  if (!own.defined()) {
    own = NewSlot();
    FillSlot(own);
  }
  const at::Tensor all = at::empty({group_.size(), slot_bytes_}, own.options());
  TDOCK_RETURN_IF_ERROR(group_.AllGather(own, all, deadline));
  if (!is_whole_) Allocate();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const at::Tensor whole = Unwatched(tensors_[i]).view({-1});
    for (int rank = 0; rank < group_.size(); ++rank) {
      const Shard shard = ShardOf(whole.numel(), rank, group_.size());
      whole.narrow(0, shard.begin, shard.size).copy_(NumbersIn(all.select(0, rank), i, shard.size));
    }
  }
  is_whole_ = true;
  return absl::OkStatus();
}

absl::Status ShardedUnit::AddScattered(std::vector<at::Tensor> gradients, const at::Tensor& sums, absl::Time deadline) {
  at::NoGradGuard no_grad;
  const at::Tensor parts = at::zeros({group_.size(), slot_size_}, sums.options());
  for (size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor flat = gradients[i].reshape({-1});
    for (int rank = 0; rank < group_.size(); ++rank) {
      const Shard shard = ShardOf(flat.numel(), rank, group_.size());
      parts.select(0, rank).narrow(0, offsets_[i], shard.size).copy_(flat.narrow(0, shard.begin, shard.size));
    }
  }
  gradients.clear();  // their memory is needed for what follows
  const at::Tensor own = at::empty_like(sums);
  TDOCK_RETURN_IF_ERROR(group_.ReduceScatterSum(parts, own, deadline));
  sums.add_(own);
  return absl::OkStatus();
}

}  // namespace tdock::trainer
