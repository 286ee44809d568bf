// Products of activations with weights.
#pragma once

#include <ATen/core/Tensor.h>

namespace tdock::model {

// Which code computes.
enum class Arithmetic {
  kLibtorch,
  // Each token's numbers are the same, bit for bit, whatever else is computed with it: the loops of src/kernels, in
  // float32 or bfloat16 on the CPU. Everything else goes to libtorch.
  kBatchInvariant,
};

// A tensor in the dtype of another, or undefined as it is.
at::Tensor As(const at::Tensor& tensor, const at::Tensor& like);

// x · weightᵀ + bias in the dtype of x, to which weight and bias are rounded. x: [..., in]; weight: [out, in]; bias:
// [out], or undefined. Gradients of weights have their dtype.
at::Tensor Product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, Arithmetic arithmetic);

}  // namespace tdock::model
