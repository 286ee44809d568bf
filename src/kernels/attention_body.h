// Included by loops.cc, as lanes_body.h. Attention of one query token.

// The rows of a head that a query sees, in order.
template <class T>
class RowWalk {
 public:
  RowWalk(const BlockedRows<T>& rows, const Visible& visible, int64_t head)
      : rows_(rows),
        offset_(head * rows.head_stride),
        next_(visible.positions),
        position_(visible.first - 1),
        in_block_(rows.block_tokens - 1) {}

  const T* Next() {
    const int64_t position = next_ != nullptr ? *next_++ : position_ + 1;
    if (position == position_ + 1 && in_block_ + 1 < rows_.block_tokens) {
      ++in_block_;
      row_ += rows_.token_stride;
    } else {
      in_block_ = position % rows_.block_tokens;
      row_ = rows_.blocks[position / rows_.block_tokens] + offset_ + in_block_ * rows_.token_stride;
    }
    position_ = position;
    return row_;
  }

 private:
  const BlockedRows<T>& rows_;
  const int64_t offset_;
  const int64_t* next_;
  int64_t position_;
  int64_t in_block_;
  const T* row_ = nullptr;
};

// scores[g · stride + i] = scale · query g · key i.
template <int kHeads, class T>
void Score(const float* query, int64_t query_stride, RowWalk<T> keys, int64_t head_dim, int64_t count, float scale,
           float* scores, int64_t stride) {
  constexpr int kPositions = kTile / kHeads;
  const float* queries[kHeads];
  for (int g = 0; g < kHeads; ++g) queries[g] = query + g * query_stride;
  for (int64_t begin = 0; begin < count; begin += kPositions) {
    const T* key[kPositions];
    const int64_t present = std::min<int64_t>(count - begin, kPositions);
    for (int p = 0; p < kPositions; ++p) key[p] = p < present ? keys.Next() : key[p - 1];
    const Lanes found = Products<kHeads, kPositions>(queries, key, head_dim) * scale;
    for (int g = 0; g < kHeads; ++g) {
      for (int64_t p = 0; p < present; ++p) scores[g * stride + begin + p] = found[g * kPositions + p];
    }
  }
}

// Replaces scores by exp(score - the largest), and returns the sum of these. Behind them is room for whole lanes.
inline float Exponentials(float* scores, int64_t count) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  for (int64_t i = count; i % kLanes != 0; ++i) scores[i] = kNone;
  Lanes largest_of_lanes = Same(kNone);
  for (int64_t i = 0; i < count; i += kLanes) largest_of_lanes = Max(Load(scores + i), largest_of_lanes);
  const float largest = Largest(largest_of_lanes);
  Lanes sums = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    const Lanes exponentials = Exp(Load(scores + i) - largest);
    Store(exponentials, scores + i);
    sums += exponentials;
  }
  return Sum(sums);
}

// sums[g · sums_stride + d] += Σ weights[g · weights_stride + i] · values[i][d], for kVectors whole lanes of d, or, if
// `part` is not 0, for so many d.
template <int kHeads, int kVectors, bool kIsPart, class T>
inline void AddWeighted(const T* const* values, int64_t count, int64_t part, const float* weights,
                        int64_t weights_stride, float* sums, int64_t sums_stride) {
  Lanes sum[kHeads][kVectors];
#pragma GCC unroll 16
  for (int g = 0; g < kHeads; ++g) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sum[g][v] = Load(sums + g * sums_stride + v * kLanes);
  }
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const Lanes value = kIsPart ? Load(values[i], part) : Load(values[i] + v * kLanes);
#pragma GCC unroll 16
      for (int g = 0; g < kHeads; ++g) sum[g][v] += weights[g * weights_stride + i] * value;
    }
  }
#pragma GCC unroll 16
  for (int g = 0; g < kHeads; ++g) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) Store(sum[g][v], sums + g * sums_stride + v * kLanes);
  }
}

template <int kHeads, class T>
void Mix(const float* weights, int64_t weights_stride, RowWalk<T> values, int64_t head_dim, int64_t count, float* sums,
         int64_t sums_stride) {
  constexpr int kVectors = kTile / kHeads < 4 ? kTile / kHeads : 4;
  constexpr int64_t kPositions = 32;
  std::fill(sums, sums + kHeads * sums_stride, 0.0F);
  for (int64_t begin = 0; begin < count; begin += kPositions) {
    const T* rows[kPositions];
    const int64_t present = std::min(count - begin, kPositions);
    for (int64_t i = 0; i < present; ++i) rows[i] = values.Next();
    const auto forward = [&](int64_t step) {
      for (int64_t i = 0; i < present; ++i) rows[i] += step;
    };
    int64_t d = 0;
    for (; d + kVectors * kLanes <= head_dim; d += kVectors * kLanes, forward(kVectors * kLanes)) {
      AddWeighted<kHeads, kVectors, false>(rows, present, 0, weights + begin, weights_stride, sums + d, sums_stride);
    }
    for (; d + kLanes <= head_dim; d += kLanes, forward(kLanes)) {
      AddWeighted<kHeads, 1, false>(rows, present, 0, weights + begin, weights_stride, sums + d, sums_stride);
    }
    if (d < head_dim) {
      AddWeighted<kHeads, 1, true>(rows, present, head_dim - d, weights + begin, weights_stride, sums + d, sums_stride);
    }
  }
}

template <int kHeads, class T>
void AttendHeads(const T* query, const RowWalk<T>& keys, const RowWalk<T>& values, int64_t head_dim, int64_t count,
                 T* output, float* scratch) {
  const int64_t width = (head_dim + kLanes - 1) / kLanes * kLanes;
  const int64_t scores_width = (count + kLanes - 1) / kLanes * kLanes;
  float* const queries = scratch;
  float* const sums = queries + kHeads * width;
  float* const scores = sums + kHeads * width;
  for (int g = 0; g < kHeads; ++g) {
    for (int64_t d = 0; d < head_dim; ++d) queries[g * width + d] = static_cast<float>(query[g * head_dim + d]);
  }
  Score<kHeads>(queries, width, keys, head_dim, count, 1.0F / std::sqrt(static_cast<float>(head_dim)), scores,
                scores_width);
  float totals[kHeads];
  for (int g = 0; g < kHeads; ++g) totals[g] = Exponentials(scores + g * scores_width, count);
  Mix<kHeads>(scores, scores_width, values, head_dim, count, sums, width);
  for (int g = 0; g < kHeads; ++g) {
    for (int64_t d = 0; d < head_dim; ++d) {
      output[g * head_dim + d] = static_cast<T>(sums[g * width + d] / totals[g]);
    }
  }
}

template <class T>
void AttendAll(const T* query, const BlockedRows<T>& keys, const BlockedRows<T>& values, const Visible& visible,
               const AttentionShape& shape, T* output, float* scratch) {
  const int64_t group = shape.heads / shape.kv_heads;
  for (int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
    const RowWalk<T> of_keys(keys, visible, kv_head), of_values(values, visible, kv_head);
    int64_t done = 0;
    while (done < group) {
      const int64_t begin = (kv_head * group + done) * shape.head_dim;
      const auto attend = [&](auto attend_heads, int64_t heads) {
        attend_heads(query + begin, of_keys, of_values, shape.head_dim, visible.count, output + begin, scratch);
        done += heads;
      };
      if (group - done >= 4 && kTile >= 16) {
        attend(AttendHeads<4, T>, 4);
      } else if (group - done >= 2) {
        attend(AttendHeads<2, T>, 2);
      } else {
        attend(AttendHeads<1, T>, 1);
      }
    }
  }
}
