#include "kernels/attention.h"

#include <algorithm>

#include "kernels/loops.h"

namespace tdock::kernels {

int64_t AttentionScratch(const AttentionShape& shape, int64_t visible) {
  // Of each head of a tile: the query, the scores and the sums, in whole lanes.
  const auto in_lanes = [](int64_t size) { return (size + kLanes - 1) / kLanes * kLanes; };
  const int64_t heads = std::min(shape.heads / shape.kv_heads, kHeadsOfTile);
  return heads * (2 * in_lanes(shape.head_dim) + in_lanes(visible));
}

void Attend(const float* query, const BlockedRows<float>& keys, const BlockedRows<float>& values,
            const Visible& visible, const AttentionShape& shape, float* output, float* scratch) {
  BestLoops().of_float.attend(query, keys, values, visible, shape, output, scratch);
}

void Attend(const c10::BFloat16* query, const BlockedRows<c10::BFloat16>& keys,
            const BlockedRows<c10::BFloat16>& values, const Visible& visible, const AttentionShape& shape,
            c10::BFloat16* output, float* scratch) {
  BestLoops().of_bfloat16.attend(query, keys, values, visible, shape, output, scratch);
}

}  // namespace tdock::kernels
