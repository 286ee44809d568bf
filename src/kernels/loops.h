// The inner loops of this module, compiled for several instruction sets. Internal to this module.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/attention.h"

namespace tdock::kernels {

// Sums are added up in this many lanes: number i goes to lane i modulo kLanes, and at the end the lanes are added in
// halves: i and i + 8, then i and i + 4, i + 2, i + 1.
constexpr int64_t kLanes = 16;
// At most so many query heads are worked on at the same time.
constexpr int64_t kHeadsOfTile = 4;

// How many outputs of a product are computed for many rows, before the next.
constexpr int64_t kOutputsOfBlock = 64;

// x · weightᵀ + bias, for `rows` rows and `outputs` ≤ kOutputsOfBlock outputs. Rows of x and weight lie one behind the
// other.
template <class T>
struct ProductBlock {
  const T* x;       // [rows, inputs]
  const T* weight;  // [outputs, inputs]
  const T* bias;    // [outputs], or null
  int64_t rows, outputs, inputs;
  T* y;  // its rows are y_stride apart
  int64_t y_stride;
  float* scratch;  // ProductScratch(inputs) floats
};
constexpr int64_t ProductScratch(int64_t inputs) { return (kOutputsOfBlock + kLanes) * inputs; }

// The loops over T, for one instruction set.
template <class T>
struct TypedLoops {
  void (*attend)(const T* query, const BlockedRows<T>& keys, const BlockedRows<T>& values, const Visible& visible,
                 const AttentionShape& shape, T* output, float* scratch);
  void (*multiply)(const ProductBlock<T>& block);
  // (x - mean) / √(variance + eps) · weight + bias, of one row; weight and bias may be null.
  void (*layer_norm)(const T* x, const float* weight, const float* bias, float eps, T* y, int64_t size);
  void (*silu)(const T* x, T* y, int64_t size);
  void (*gelu)(const T* x, T* y, int64_t size);
  void (*gelu_tanh)(const T* x, T* y, int64_t size);
  // log Σ exp(logits / temperature).
  float (*log_sum)(const T* logits, float temperature, int64_t size);
};

// Those of two instruction sets may differ in the last bit: some multiply and add in one rounding.
struct Loops {
  const char* instructions;
  TypedLoops<float> of_float;
  TypedLoops<c10::BFloat16> of_bfloat16;
  void (*exp)(const float* x, float* y, int64_t size);

  template <class T>
  const TypedLoops<T>& of() const {
    if constexpr (std::is_same_v<T, float>) {
      return of_float;
    } else {
      static_assert(std::is_same_v<T, c10::BFloat16>);
      return of_bfloat16;
    }
  }
};

// For every instruction set that this processor has, the best first.
std::vector<const Loops*> AllLoops();
// Always the same in a process.
const Loops& BestLoops();

}  // namespace tdock::kernels
