// Root-mean-square norms on the CPU, forward and backward in one pass over memory each.
#pragma once

#include <ATen/core/Tensor.h>

namespace tdock::model {

// Whether RmsNorm() takes x: on the CPU, or without data, in float32 or bfloat16.
bool HasRmsNormKernel(const at::Tensor& x);

// x · weight / √(mean(x²) + eps) over the last dimension, computed in float32 and rounded once to the dtype of x (Zhang
// and Sennrich 2019, arXiv:1910.07467). x: [..., C]; weight: float32 [C]. Gradients flow to both, once. Thread-safe.
// The same on any number of threads.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace tdock::model
