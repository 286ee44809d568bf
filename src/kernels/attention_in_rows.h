// Attention over keys and values that lie in tensors.
//
// Shapes: N queries, M keys, H heads, K heads of keys and values, D head size.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
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

struct Attended {
  at::Tensor output;    // [N, H, D]
  at::Tensor log_sums;  // float32 [N, H]: log Σ exp(scores)
};

// What PagedAttention gives, for queries [N, H, D], keys [M, K, D] and values [M, K, D], all of them on the CPU, in
// float32 or bfloat16; undefined where no part has a query. No gradients flow. Throws c10::Error for other devices,
// dtypes and shapes. Thread-safe.
Attended AttendInRows(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                      std::span<const SequencePart> parts, int64_t window);

// The gradients of queries, keys and values, from that of the output, as its queries; 0 where no part has a query or a
// key. Computed in float32 and rounded once; the same on any number of threads. No two parts share keys. Thread-safe.
// Source: Dao et al. 2022, arXiv:2205.14135, appendix B.2.
std::array<at::Tensor, 3> AttentionGradients(const at::Tensor& queries, const at::Tensor& keys,
                                             const at::Tensor& values, const Attended& attended,
                                             const at::Tensor& outgoing, std::span<const SequencePart> parts,
                                             int64_t window);

}  // namespace tdock::kernels
