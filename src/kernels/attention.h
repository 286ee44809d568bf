// Attention of one query token over keys and values in blocks, on the CPU.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace tdock::kernels {

// Keys or values of the positions of a sequence, in blocks of `block_tokens` positions. The head_dim numbers of head h
// at position p begin at blocks[p / block_tokens] + h * head_stride + (p % block_tokens) * token_stride.
template <class T>
struct BlockedRows {
  const T* const* blocks;
  int64_t block_tokens;
  int64_t head_stride;
  int64_t token_stride;
};

// What a query sees: the positions first … first + count - 1, or, if given, positions[0 … count). At least one.
struct Visible {
  int64_t first = 0;
  int64_t count = 0;
  const int64_t* positions = nullptr;
};

// Query heads i·heads/kv_heads … share the keys and values of kv head i. kv_heads divides heads.
struct AttentionShape {
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
};

// How many floats of scratch memory Attend() needs for a query that sees `visible` positions.
int64_t AttentionScratch(const AttentionShape& shape, int64_t visible);

// softmax(q · Kᵀ / √head_dim) · V for one query token: query and output are [heads, head_dim], contiguous; scratch has
// at least AttentionScratch(shape, visible.count) floats. Computed in float32 and rounded once. The result depends on
// the query and on the sequence of visible keys and values only, not on blocks or strides. Thread-safe.
// Source: Vaswani et al. 2017, arXiv:1706.03762, §3.2; grouped queries: Ainslie et al. 2023, arXiv:2305.13245.
void Attend(const float* query, const BlockedRows<float>& keys, const BlockedRows<float>& values,
            const Visible& visible, const AttentionShape& shape, float* output, float* scratch);
void Attend(const c10::BFloat16* query, const BlockedRows<c10::BFloat16>& keys,
            const BlockedRows<c10::BFloat16>& values, const Visible& visible, const AttentionShape& shape,
            c10::BFloat16* output, float* scratch);

}  // namespace tdock::kernels
