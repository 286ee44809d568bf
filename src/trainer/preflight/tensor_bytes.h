// How many bytes the tensors of a computation need, without the memory and the time that it takes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace tdock::trainer {

// While it exists, tensors of the device "meta", which have shapes and no data, are counted as if they had data, and
// their attention is that of the fused kernels, which never hold all pairs of tokens, if `fused`. So the code that will
// compute can be asked what it will hold. One at a time in a process.
class TensorBytes {
 public:
  explicit TensorBytes(bool fused);
  ~TensorBytes();
  TensorBytes(const TensorBytes&) = delete;
  TensorBytes& operator=(const TensorBytes&) = delete;

  int64_t live() const;  // of the tensors that exist
  int64_t peak() const;  // the most that there were at the same time
  // The same of those below 32 MiB, which glibc takes from its heaps once the first ones were freed.
  int64_t peak_in_heap() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace tdock::trainer
