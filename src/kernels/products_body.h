// Included by loops.cc, as lanes_body.h. Products of matrices. Each output is the sum of its own products over lanes,
// so that it is the same in tiles of every form.

// kRows rows x and kOutputs rows of weights w, of which `rows` and `outputs` are wanted; the others repeat the last.
template <int kRows, int kOutputs, class X, class W, class T>
inline void MultiplyTile(const X* x, const W* w, int64_t rows, int64_t outputs, const ProductBlock<T>& block,
                         const T* bias, T* y) {
  const X* x_rows[kRows];
  const W* w_rows[kOutputs];
  for (int64_t r = 0; r < kRows; ++r) x_rows[r] = x + std::min(r, rows - 1) * block.inputs;
  for (int64_t o = 0; o < kOutputs; ++o) w_rows[o] = w + std::min(o, outputs - 1) * block.inputs;
  float sums[kLanes];
  // The rows of the next tile lie behind these. One row of x is read as fast as the memory is without asking ahead.
  const int64_t ahead = kRows > 1 ? kOutputs * block.inputs : 0;
  Store(Products<kRows, kOutputs>(x_rows, w_rows, block.inputs, ahead), sums);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < outputs; ++o) {
      const float sum = sums[r * kOutputs + o];
      y[r * block.y_stride + o] = static_cast<T>(bias != nullptr ? sum + static_cast<float>(bias[o]) : sum);
    }
  }
}

// All outputs of up to kRows rows.
template <int kRows, class X, class W, class T>
void MultiplyRows(const X* x, const W* w, int64_t rows, const ProductBlock<T>& block, T* y) {
  constexpr int kOutputs = kTile / kRows;
  for (int64_t o = 0; o < block.outputs; o += kOutputs) {
    MultiplyTile<kRows, kOutputs>(x, w + o * block.inputs, rows, std::min<int64_t>(block.outputs - o, kOutputs), block,
                                  block.bias != nullptr ? block.bias + o : nullptr, y + o);
  }
}

inline void Widen(const BFloat16* from, float* to, int64_t size) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) Store(Load(from + i), to + i);
  for (; i < size; ++i) to[i] = static_cast<float>(from[i]);
}

template <class T>
void Multiply(const ProductBlock<T>& block) {
  constexpr int kRows = kTile == 16 ? 4 : 2;
  const int64_t inputs = block.inputs;
  // For many rows it pays to widen the weights once.
  const bool widens = !std::is_same_v<T, float> && block.rows >= 2 * kRows;
  float* const wide_weight = block.scratch;
  float* const wide_x = block.scratch + kOutputsOfBlock * inputs;
  if constexpr (!std::is_same_v<T, float>) {
    if (widens) Widen(block.weight, wide_weight, block.outputs * inputs);
  }
  for (int64_t r = 0; r < block.rows;) {
    const int64_t rows = std::min<int64_t>(block.rows - r, kRows);
    const T* const x = block.x + r * inputs;
    T* const y = block.y + r * block.y_stride;
    if constexpr (!std::is_same_v<T, float>) {
      if (widens) {
        Widen(x, wide_x, rows * inputs);
        MultiplyRows<kRows>(wide_x, wide_weight, rows, block, y);
        r += rows;
        continue;
      }
    }
    if (rows == 1) {
      MultiplyRows<1>(x, block.weight, rows, block, y);
    } else {
      MultiplyRows<kRows>(x, block.weight, rows, block, y);
    }
    r += rows;
  }
}
