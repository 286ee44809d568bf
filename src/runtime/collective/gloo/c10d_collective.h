// A group of ranks over any backend of c10d, such as ProcessGroupGloo.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/collective/operation.h"
#include "runtime/collective/tensor/tensor_collective.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace tdock::runtime {

struct C10dGroup {
  std::string name = {};  // for errors
  int rank = 0;
  int size = 1;
  // Of this group only. Each rank writes there which operation it has come to, which is what errors know of the others.
  c10::intrusive_ptr<c10d::Store> store = {};
  // Where the backend's tensors are; others are copied there and back.
  c10::Device device = c10::kCPU;
};

// How long c10d may wait, at least 1 ms.
std::chrono::milliseconds TimeUntil(absl::Time deadline);

class C10dCollective final : public TensorCollective {
 public:
  explicit C10dCollective(C10dGroup group) : group_(std::move(group)) {}
  ~C10dCollective() override;

  // Before anything else: makes the backend, which may throw. `disconnect` ends its connections at once, so that what
  // waits for them fails, at this rank and at the others; any thread may call it.
  struct Connection {
    c10::intrusive_ptr<c10d::Backend> backend = {};
    std::function<void()> disconnect = {};  // does not throw
  };
  absl::Status Connect(absl::FunctionRef<Connection()> make, absl::Time deadline);

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }
  absl::StatusOr<Buffer> Broadcast(Buffer bytes, int root, absl::Time deadline) override;
  absl::StatusOr<int64_t> AllReduceMax(int64_t value, absl::Time deadline) override;
  absl::Status Barrier(absl::Time deadline) override;
  using TensorCollective::AllReduceSum;
  absl::Status AllReduceSum(std::span<const at::Tensor> tensors, absl::Time deadline) override;
  absl::Status ReduceScatterSum(const at::Tensor& parts, const at::Tensor& own, absl::Time deadline) override;
  absl::Status AllGather(const at::Tensor& own, const at::Tensor& parts, absl::Time deadline) override;
  absl::StatusOr<std::vector<Buffer>> AllGatherBytes(Buffer bytes, absl::Time deadline) override;
  void Leave() override;

 private:
  absl::Status Do(const std::string& what, absl::Time deadline, absl::FunctionRef<void()> body);
  // With tensors like these at all ranks: otherwise Internal, before the backend sees them.
  absl::Status DoAlike(Operation::Kind kind, std::span<const at::Tensor> tensors, absl::Time deadline,
                       absl::FunctionRef<void()> body);
  absl::Status Explain(const std::string& what, const std::string& cause, bool late, size_t others) const;
  at::Tensor Here(const at::Tensor& tensor) const { return tensor.to(group_.device); }

  void Wait(c10d::Work& work, absl::Time deadline) const;
  bool HasOtherLeft() const;
  void Send(const at::Tensor& tensor, int root, absl::Time deadline);
  // In place, one after the other.
  void Reduce(std::span<const at::Tensor> tensors, const c10d::ReduceOp& operation, absl::Time deadline);
  void Gather(const at::Tensor& own, const at::Tensor& parts, absl::Time deadline);

  const C10dGroup group_;
  Connection connection_;
  std::atomic<bool> left_ = false;
  int64_t operations_ = 0;
  absl::Status ended_;
};

}  // namespace tdock::runtime
