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
// What the query tokens of a sequence see of it. Row r is query token r / group, and head r % group of those that share
// the kv head. See attention.h.
struct AttentionSight {
  int64_t group;
  int64_t first_position;  // of token 0
  int64_t window;
  const bool* visible;  // of token 0, or null
  int64_t visible_stride;
  int64_t sequence;  // positions
};

// Attention of the rows of whole tokens, for one kv head.
template <class T>
struct AttentionRows {
  const T* keys;  // those of page p begin at keys + p · page_stride, as the values
  const T* values;
  int64_t page_stride;
  const int32_t* pages;
  const T* queries;  // of token 0
  int64_t token_stride, head_stride;
  T* output;        // of token 0; tokens are heads · head_dim apart
  float* log_sums;  // of token 0, or null; tokens are `heads` apart
  int64_t heads, head_dim;
  int64_t begin_row, end_row;
  AttentionSight sight;
  float* scratch;  // AttentionScratch() floats
};

template <class T>
int64_t AttentionScratch(const AttentionRows<T>& rows) {
  constexpr int64_t kMostRows = 2 * kLanes;
  const int64_t pages = (rows.sight.sequence + kPageTokens - 1) / kPageTokens;
  const int64_t widened = std::is_same_v<T, float> ? 0 : 2 * kPageTokens * rows.head_dim;
  return pages * (kPageTokens * (kMostRows + 1) + widened + 4) + 2 * kMostRows * (rows.head_dim + kLanes) + 4 * kLanes;
}

// Gradients of the attention of all queries of a sequence, for one kv head: of what token 0 and position 0 begin with.
template <class T>
struct AttentionGradientRows {
  TokenRows<T> queries, output, outgoing;  // of the heads that share the kv head
  TokenRows<T> keys, values;
  const float* log_sums;  // tokens are `heads` apart
  int64_t heads, kv_heads, head_dim;
  AttentionSight sight;
  T* query_gradient;  // tokens are heads · head_dim apart
  T* key_gradient;    // tokens are kv_heads · head_dim apart
  T* value_gradient;  // the same
  float* scratch;     // AttentionGradientScratch() floats
};

template <class T>
int64_t AttentionGradientScratch(const AttentionGradientRows<T>& rows) {
  constexpr int64_t kMostRows = 2 * kLanes, kMostPages = 4;
  const int64_t pages = (rows.sight.sequence + kPageTokens - 1) / kPageTokens, width = rows.head_dim + kLanes;
  return pages * kPageTokens * (5 * width + 1) + 5 * kMostRows * width + 2 * kMostPages * kPageTokens * kMostRows +
         16 * kLanes;
}

// An activation of numbers, and of gates; see elementwise.h. Gradients are not added to what is there.
template <class T>
struct ActivationLoops {
  void (*apply)(const T* x, T* y, int64_t size);
  void (*gradient)(const T* x, const T* dy, T* dx, int64_t size);
  void (*gate)(const T* gate, const T* up, T* y, int64_t size);
  void (*gate_gradient)(const T* gate, const T* up, const T* dy, T* dgate, T* dup, int64_t size);
};

// weight and bias may be null.
struct NormParameters {
  const float* weight;
  const float* bias;
  float eps;
};
// What a norm finds out about a row.
struct NormFigures {
  float mean = 0;
  float scale = 0;  // by which the differences from the mean are multiplied
};

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
  void (*attend)(const AttentionRows<T>& rows);
  void (*attention_gradient)(const AttentionGradientRows<T>& rows);
  // panels.h says what these read and write.
  void (*pack_tile)(const T* x, int64_t rows, int64_t inputs, RowWords words, float* to);
  void (*pack_panel)(const T* weight, int64_t outputs, int64_t inputs, PackedFormat format, std::byte* to);
  void (*multiply)(const PanelProduct<T>& product);  // with weights in float32 or bfloat16
  void (*multiply_int8)(const PanelProduct<T>& product);
  // (x - mean) · scale · weight + bias, of one row; without a mean for rms_norm.
  NormFigures (*rms_norm)(const T* x, const NormParameters& parameters, T* y, int64_t size);
  NormFigures (*layer_norm)(const T* x, const NormParameters& parameters, T* y, int64_t size);
  // The gradient of x; those of weight and bias are added to dweight and dbias, which may be null.
  void (*rms_norm_gradient)(const T* x, const T* dy, const NormParameters& parameters, const NormFigures& figures,
                            T* dx, float* dweight, float* dbias, int64_t size);
  void (*layer_norm_gradient)(const T* x, const T* dy, const NormParameters& parameters, const NormFigures& figures,
                              T* dx, float* dweight, float* dbias, int64_t size);
  // Turns the pairs (x[i], x[i + size/2]) by angles i, or, if direction is -1, back.
  void (*rotate)(const T* x, const float* cos, const float* sin, float direction, T* y, int64_t size);
  ActivationLoops<T> silu, relu, gelu, gelu_tanh;
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

// Those of two instruction sets may differ in the last bit: some multiply and add in one rounding. Loops with the same
// `instructions` have the same bits.
struct Loops {
  const char* instructions;
  int64_t tile_rows;      // the most rows of a tile of packed rows
  int vector_bits;        // width of a register; 0 if any processor has these
  bool multiplies_pairs;  // of bfloat16 with bfloat16, instead of widening both
  TypedLoops<float> of_float;
  TypedLoops<c10::BFloat16> of_bfloat16;
  void (*exp)(const float* x, float* y, int64_t size);
  void (*widen)(const c10::BFloat16* x, float* y, int64_t size);
  int64_t (*multiply_and_add)(int64_t times);  // see limits.h
  float (*sum)(const float* x, int64_t size);

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

// True on AMD's processors since Zen 5. All but some mobile ones multiply 512 bits at once.
bool HasWideMultipliersOfAmd();
// All that this processor can run, the best first. Some have the same name.
std::vector<const Loops*> AllLoops();
// The first of them, unless UseInstructions() has chosen others.
const Loops& LoopsInUse();

}  // namespace tdock::kernels
