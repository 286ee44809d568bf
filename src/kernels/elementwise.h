// Norms, activations and rotations on the CPU, each in one pass over its numbers, with gradients (which flow once).
//
// All take float32 or bfloat16, compute in float32 and round once, except where they say otherwise. A number, or a row
// of a norm, gives the same bits at any place, whatever else is computed, with and without gradients and on any number
// of threads. Of tensors without data only the shapes are computed. They throw c10::Error for other devices, dtypes and
// for shapes that do not fit. Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

namespace tdock::kernels {

// Whether these functions take x: on the CPU, or without data, in float32 or bfloat16.
bool IsElementwise(const at::Tensor& x);

enum class Activation {
  kSilu,  // x · σ(x) (Elfwing et al. 2017, arXiv:1702.03118)
  kRelu,
  kGelu,  // x · Φ(x), and its approximation with tanh (Hendrycks and Gimpel 2016, arXiv:1606.08415)
  kGeluTanh,
};
at::Tensor Activate(Activation activation, const at::Tensor& x);
// activation(gate) · up of a fused projection, [..., 2·I] with the gate first, to [..., I] (Shazeer 2020,
// arXiv:2002.05202). In bfloat16 activation(gate) is rounded too, as by libtorch and `transformers`.
at::Tensor Gate(Activation activation, const at::Tensor& gate_and_up);

// Norms over the last dimension of x: [..., C]; weight, bias: [C] in float32 or bfloat16, or undefined.
// x / √(mean(x²) + eps) · weight (Zhang and Sennrich 2019, arXiv:1910.07467).
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);
// (x - mean) / √(variance + eps) · weight + bias, with the variance of the whole (Ba et al. 2016, arXiv:1607.06450).
at::Tensor LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);

// Turns pairs of coordinates, which are the halves of the last dimension, by the angles of their tokens. x: [B, T,
// heads, D]; cos, sin: float32 [B, T, 1, D], of which the first half counts; no gradients flow into them (Su et al.
// 2021, arXiv:2104.09864).
at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace tdock::kernels
