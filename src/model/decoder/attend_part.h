// Attention of a part of a sequence to the sequence, by libtorch's operation. Internal to caches.
#pragma once

#include <ATen/core/Tensor.h>

namespace tdock::model {

// queries: [T, H, D], of the positions begin … begin + T - 1; keys, values: [begin + T, K, D], of the positions from 0.
// Each query sees the positions up to its own, of these the last `window`, unless 0. Half precision on the CPU is
// computed in float32. The result is [T, H, D].
at::Tensor AttendPart(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values, int64_t begin,
                      int64_t window);

}  // namespace tdock::model
