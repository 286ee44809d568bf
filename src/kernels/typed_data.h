// From tensors to the loops over their numbers. Internal to this module.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "kernels/loops.h"

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

}  // namespace tdock::kernels
