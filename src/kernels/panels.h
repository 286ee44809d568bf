// The layouts of what products read. Internal to this module.
//
// Weights are in panels of kPanelOutputs outputs, one behind the other. Within a panel, numbers lie side by side that
// are multiplied with the same input: float32 and int8 [inputs, kPanelOutputs], bfloat16 in pairs of inputs
// [pairs, kPanelOutputs, 2]. What a last pair or panel lacks is 0.
//
// Rows of x are in tiles of up to 12 rows, one behind the other: [inputs, rows] in float32, or pairs of
// bfloat16 as 32 bits, [pairs, rows].
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/packed_matrix.h"

namespace tdock::kernels {

constexpr int64_t kPanelOutputs = 32;

constexpr int64_t DividedUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of one panel.
constexpr int64_t PanelBytes(PackedFormat format, int64_t inputs) {
  switch (format) {
    case PackedFormat::kFloat:
      return inputs * kPanelOutputs * 4;
    case PackedFormat::kBFloat16:
      return DividedUp(inputs, 2) * kPanelOutputs * 4;
    case PackedFormat::kInt8:
      return inputs * kPanelOutputs;
  }
  return 0;
}
constexpr int64_t PanelScales(PackedFormat format, int64_t inputs) {
  return format == PackedFormat::kInt8 ? DividedUp(inputs, kInt8Group) * kPanelOutputs : 0;
}

// How rows are divided into tiles of nearly the same size.
struct RowTiles {
  RowTiles(int64_t all_rows, int64_t most) : rows(all_rows), count(DividedUp(all_rows, most)) {}
  int64_t begin(int64_t tile) const { return tile * rows / count; }
  int64_t size(int64_t tile) const { return begin(tile + 1) - begin(tile); }

  int64_t rows, count;
};

// Products of packed rows with consecutive panels.
template <class T>
struct PanelProduct {
  const float* x = nullptr;  // all tiles; pairs if `pairs`
  bool pairs = false;        // x has pairs of bfloat16, for weights in bfloat16
  int64_t rows = 0, inputs = 0;
  PackedFormat format = PackedFormat::kFloat;
  const std::byte* panels = nullptr;
  const float* scales = nullptr;
  const T* bias = nullptr;  // [outputs], or null
  int64_t outputs = 0;      // the last panel may have fewer than kPanelOutputs
  T* y = nullptr;           // [rows, outputs], its rows y_stride apart
  int64_t y_stride = 0;
};

}  // namespace tdock::kernels
