// Products of matrices on the CPU with a fixed order of sums.
#pragma once

#include <ATen/core/Tensor.h>

namespace tdock::kernels {

// x · weightᵀ + bias: x [..., inputs], weight [outputs, inputs], bias [outputs] or undefined, all of them float32 or
// all bfloat16; summed up in float32 and rounded once. A row of the result is the same, bit for bit, whatever the other
// rows are and on any number of threads. No gradients flow. Throws c10::Error for other devices, dtypes and shapes.
// Thread-safe.
at::Tensor Product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace tdock::kernels
