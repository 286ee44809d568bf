// The layouts of what products read. Internal to this module.
//
// Weights are in panels of kPanelOutputs outputs, one behind the other. Within a panel, numbers lie side by side that
// are multiplied with the same input: float32 [inputs, kPanelOutputs], bfloat16 in pairs of inputs
// [pairs, kPanelOutputs, 2], int8 in fours, of each group [kFoursOfGroup, kPanelOutputs, 4] and then the scales
// [kPanelOutputs] in float32. What a last pair, group or panel lacks is 0.
//
// Rows of x are in tiles of up to 12 rows, one behind the other: [words, rows], where a word of 32 bits is what is
// multiplied at a time (RowWords).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/packed_matrix.h"

namespace tdock::kernels {

constexpr int64_t kPanelOutputs = 32;

constexpr int64_t kFoursOfGroup = kInt8Group / 4;

constexpr int64_t DividedUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of one panel.
constexpr int64_t PanelBytes(PackedFormat format, int64_t inputs) {
  switch (format) {
    case PackedFormat::kFloat:
      return inputs * kPanelOutputs * 4;
    case PackedFormat::kBFloat16:
      return DividedUp(inputs, 2) * kPanelOutputs * 4;
    case PackedFormat::kInt8:
      return DividedUp(inputs, kInt8Group) * (kFoursOfGroup + 1) * kPanelOutputs * 4;
  }
  return 0;
}

// Words of a row of x: each is a float32, or a pair of bfloat16. For weights in int8, the row is rounded as they are,
// and each group has kFoursOfGroup words of four numbers from -127 to 127, their scale in float32, and -128 times their
// sum in int32.
enum class RowWords { kNumbers, kPairs, kFours };
constexpr int64_t kWordsOfGroup = kFoursOfGroup + 2;

constexpr int64_t WordCount(RowWords words, int64_t inputs) {
  switch (words) {
    case RowWords::kNumbers:
      return inputs;
    case RowWords::kPairs:
      return DividedUp(inputs, 2);
    case RowWords::kFours:
      return DividedUp(inputs, kInt8Group) * kWordsOfGroup;
  }
  return 0;
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
  const float* x = nullptr;             // all tiles
  RowWords words = RowWords::kNumbers;  // kPairs for weights in bfloat16 only, kFours for all in int8
  int64_t rows = 0, inputs = 0;
  PackedFormat format = PackedFormat::kFloat;
  const std::byte* panels = nullptr;
  const T* bias = nullptr;  // [outputs], or null
  int64_t outputs = 0;      // the last panel may have fewer than kPanelOutputs
  T* y = nullptr;           // [rows, outputs], its rows y_stride apart
  int64_t y_stride = 0;
};

}  // namespace tdock::kernels
