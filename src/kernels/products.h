// Products of matrices on the CPU with a fixed order of sums.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/packed_matrix.h"

namespace tdock::kernels {

// x · weightᵀ + bias: x [..., inputs], weight [outputs, inputs], bias [outputs] or undefined. x and bias are both
// float32 or both bfloat16, as the result is; each output is one sum in float32, to which the products are added in
// an order of the inputs that is always the same, rounded once at the end. With weights in int8, x is rounded as they
// are, and the products of a group are added as one number. A row of the result is the same, bit for
// bit, whatever the other rows are and on any number of threads. No gradients flow. Throws c10::Error for other
// devices, dtypes and shapes. Thread-safe.
at::Tensor Product(const at::Tensor& x, const PackedMatrix& weight, const at::Tensor& bias);

// The same for a weight in float32 or bfloat16, rounded to the dtype of x, with the same result as if it had been
// packed in that format. Laying it out takes about as long as multiplying it with 16 rows.
at::Tensor Product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// a · b: a [rows, inputs], b [inputs, outputs], both float32, with sums as those of Product(). Transposed views of
// contiguous matrices are read as they are, without a copy. Throws c10::Error for other devices, dtypes and shapes.
// Thread-safe.
at::Tensor Multiply(const at::Tensor& a, const at::Tensor& b);

// True if these products are faster than libtorch's in float32. Libtorch's use AVX2 on all processors of AMD; those
// since Zen 5 multiply 512 bits at once.
bool MultipliesFloatFast();

// Whether this processor multiplies bfloat16 faster than float32.
bool MultipliesBFloat16Fast();

// True if this processor computes in bfloat16 at least as fast as in float32: it multiplies or widens whole vectors.
bool HasFastBFloat16();

}  // namespace tdock::kernels
