// Attention over keys and values that lie in tensors.
//
// Shapes: N queries, M keys, H heads, K heads of keys and values, D head size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace tdock::kernels {

// Queries that attend to the positions of one sequence: of these they are the last.
struct SequencePart {
  int64_t first_query = 0;  // where they begin in the queries, and in the result
  int64_t first_key = 0;    // where position 0 is in the keys and values
  int64_t count = 0;        // queries
  int64_t positions = 0;    // of the sequence, at least `count`
  // bool [count, positions], contiguous: what each query sees, at least one position. Undefined: the last `window`
  // positions up to its own, or all of them if `window` is 0.
  at::Tensor visible = {};
};

// What PagedAttention gives, for queries [N, H, D], keys [M, K, D] and values [M, K, D], all of them on the CPU, in
// float32 or bfloat16. The result is [N, H, D], undefined where no part has a query. No gradients flow. Throws
// c10::Error for other devices, dtypes and shapes. Thread-safe.
at::Tensor AttendInRows(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                        std::span<const SequencePart> parts, int64_t window);

}  // namespace tdock::kernels
