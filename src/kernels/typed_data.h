// From tensors to the loops over their numbers. Internal to this module.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <initializer_list>

#include "kernels/loops.h"
#include "kernels/parallel.h"

namespace tdock::kernels {

// Throws c10::Error unless x is on the CPU, in float32 or bfloat16.
inline void CheckKernelTensor(const at::Tensor& x, const char* what) {
  TORCH_CHECK(x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16), what,
              " of kernels are on the CPU, in float32 or bfloat16, not on ", x.device(), " in ", x.scalar_type());
}

// Calls body(T()) for the type T of the numbers of x.
template <class Body>
void WithTypeOf(const at::Tensor& x, Body&& body) {
  if (x.scalar_type() == at::kFloat) {
    body(float());
  } else {
    body(c10::BFloat16());
  }
}

// Whether an operation must be recorded for the gradients of one of these.
inline bool NeedsGradients(std::initializer_list<const at::Tensor*> inputs) {
  return at::GradMode::is_enabled() && std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor* x) {
           return x->defined() && x->requires_grad();
         });
}

// Divides `count` pieces of work of about `size` numbers each among threads: calls body(begin, end) for parts.
template <class Body>
void InParts(int64_t count, int64_t size, Body&& body) {
  ParallelFor(count, std::max<int64_t>(8192 / std::max<int64_t>(size, 1), 1), body);
}

// The rows of a tensor along its last dimension. Those of a part of a wider tensor, [..., heads, size], need no copy:
// they lie in groups.
class Rows {
 public:
  explicit Rows(const at::Tensor& x) : tensor_(x) {
    const int64_t dims = x.dim();
    size_ = x.size(-1);
    count_ = size_ == 0 ? 0 : x.numel() / size_;
    bool in_groups = dims >= 3 && x.stride(-1) == 1 && !x.is_contiguous();
    for (int64_t i = 0; i + 3 < dims; ++i) in_groups = in_groups && x.stride(i) == x.stride(i + 1) * x.size(i + 1);
    if (in_groups) {
      of_group_ = std::max<int64_t>(x.size(-2), 1);
      group_stride_ = x.stride(-3);
      row_stride_ = x.stride(-2);
    } else {
      tensor_ = x.contiguous();
      group_stride_ = size_;
    }
  }

  int64_t count() const { return count_; }
  int64_t size() const { return size_; }
  template <class T>
  const T* row(int64_t i) const {
    return tensor_.const_data_ptr<T>() + i / of_group_ * group_stride_ + i % of_group_ * row_stride_;
  }

 private:
  at::Tensor tensor_;
  int64_t count_, size_;
  int64_t of_group_ = 1, group_stride_ = 0, row_stride_ = 0;
};

}  // namespace tdock::kernels
