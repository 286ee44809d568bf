// The inner loops of this module, compiled for several instruction sets. Internal to this module.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/attention.h"
#include "kernels/panels.h"

namespace tdock::kernels {

// Sums are added up in this many lanes: number i goes to lane i modulo kLanes, and at the end the lanes are added in
// halves: i and i + 8, then i and i + 4, i + 2, i + 1.
constexpr int64_t kLanes = 16;
// At most so many query heads are worked on at the same time.
constexpr int64_t kHeadsOfTile = 4;

// Logits of a row are summed up in blocks of so many.
constexpr int64_t kLogitsOfBlock = 1024;
struct BlockSum {
  float largest;  // logit / temperature
  float sum;      // Σ exp(logit / temperature - largest)
};

// What the gradient of a row of logits follows from: log Σ exp, the entropy, and the gradients of a loss with respect
// to the log-probability of the target and the entropy.
struct ScoreGradient {
  int64_t target;
  float log_sum, entropy, of_log_prob, of_entropy;
};

// The loops over T, for one instruction set.
template <class T>
struct TypedLoops {
  void (*attend)(const T* query, const BlockedRows<T>& keys, const BlockedRows<T>& values, const Visible& visible,
                 const AttentionShape& shape, T* output, float* scratch);
  // panels.h says what these read and write; `scales` may be null where the format has none.
  void (*pack_tile)(const T* x, int64_t rows, int64_t inputs, bool pairs, float* to);
  void (*pack_panel)(const T* weight, int64_t outputs, int64_t inputs, PackedFormat format, std::byte* to,
                     float* scales);
  void (*multiply)(const PanelProduct<T>& product);
  // (x - mean) / √(variance + eps) · weight + bias, of one row; weight and bias may be null.
  void (*layer_norm)(const T* x, const float* weight, const float* bias, float eps, T* y, int64_t size);
  void (*silu)(const T* x, T* y, int64_t size);
  void (*gelu)(const T* x, T* y, int64_t size);
  void (*gelu_tanh)(const T* x, T* y, int64_t size);
  // Of the logits of a row; `inverse` is 1 / temperature. sums has one for each block.
  void (*sum_blocks)(const T* logits, float inverse, int64_t size, BlockSum* sums);
  // Of one block: the first place where the running sum of exp(logit / temperature - largest) exceeds `target`, or the
  // last that adds to it if none does.
  int64_t (*find_in_block)(const T* logits, float inverse, float largest, double target, int64_t size);
  int64_t (*find_largest)(const T* logits, int64_t size);  // the first of equal ones
  void (*log_probs)(const T* logits, float inverse, float log_sum, float* to, int64_t size);
  float (*entropy)(const T* logits, float inverse, float log_sum, int64_t size);
  void (*log_prob_gradient)(const T* logits, float inverse, const ScoreGradient& of, T* gradient, int64_t size);
};

// Those of two instruction sets may differ in the last bit: some multiply and add in one rounding.
struct Loops {
  const char* instructions;
  int64_t tile_rows;      // the most rows of a tile of packed rows
  bool multiplies_pairs;  // of bfloat16 with bfloat16, instead of widening both
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
