// Activations and norms on the CPU. libtorch computes the last few numbers of a tensor otherwise than the rest; here
// the same number gives the same bits at any place, and a row the same whatever the other rows are.
//
// All take float32 or bfloat16, compute in float32 and round once. No gradients flow. They throw c10::Error for other
// devices and dtypes. Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

namespace tdock::kernels {

// x · σ(x) (Elfwing et al. 2017, arXiv:1702.03118).
at::Tensor Silu(const at::Tensor& x);
// x · Φ(x), and its approximation with tanh (Hendrycks and Gimpel 2016, arXiv:1606.08415).
at::Tensor Gelu(const at::Tensor& x);
at::Tensor GeluTanh(const at::Tensor& x);

// (x - mean) / √(variance + eps) · weight + bias over the last dimension, with the variance of the whole (Ba et al.
// 2016, arXiv:1607.06450). x: [..., C]; weight, bias: float32 [C], or undefined.
at::Tensor LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);

}  // namespace tdock::kernels
