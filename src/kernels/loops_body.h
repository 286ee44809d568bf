// Included by the loops_….cc in the namespace of an instruction set, compiled for it. What a pragma's target implies is
// not in the compiler's macros, so they say how wide vectors are: TDOCK_VECTOR_BITS, 0 for any processor.

// clang-format off
#include "kernels/lanes_body.h"
#include "kernels/activations_body.h"
#include "kernels/attention_vectors_body.h"
#include "kernels/attention_body.h"
#include "kernels/attention_gradient_body.h"
#include "kernels/limits_body.h"
#include "kernels/log_probs_body.h"
#include "kernels/panels_body.h"
#include "kernels/products_body.h"
#include "kernels/rows_body.h"
// clang-format on

template <class T>
using MultiplyFunction = void (*)(const PanelProduct<T>&);

template <class T>
constexpr TypedLoops<T> TypedLoopsWith(MultiplyFunction<T> multiply_int8) {
  return {
      .attend = Attend<T>,
      .attention_gradient = AddAttentionGradient<T>,
      .pack_tile = PackTile<T>,
      .pack_panel = PackPanel<T>,
      .multiply = MultiplyFloats<T>,
      .multiply_int8 = multiply_int8,
      .rms_norm = NormRow<false, T>,
      .layer_norm = NormRow<true, T>,
      .rms_norm_gradient = NormRowGradient<false, T>,
      .layer_norm_gradient = NormRowGradient<true, T>,
      .rotate = RotateRow<T>,
      .silu = kActivationLoops<Silu, T>,
      .relu = kActivationLoops<Relu, T>,
      .gelu = kActivationLoops<Gelu, T>,
      .gelu_tanh = kActivationLoops<GeluTanh, T>,
      .sum_blocks = SumBlocks<T>,
      .find_in_block = FindInBlock<T>,
      .find_largest = FindLargest<T>,
      .log_probs = LogProbsOfRow<T>,
      .entropy = EntropyOfRow<T>,
      .log_prob_gradient = LogProbGradient<T>,
  };
}

constexpr Loops LoopsWith(MultiplyFunction<float> int8_of_float, MultiplyFunction<BFloat16> int8_of_bfloat16) {
  return {
      .instructions = kInstructions,
      .tile_rows = kTileRows,
      .vector_bits = TDOCK_VECTOR_BITS,
      .multiplies_pairs = kMultipliesPairs,
      .of_float = TypedLoopsWith<float>(int8_of_float),
      .of_bfloat16 = TypedLoopsWith<BFloat16>(int8_of_bfloat16),
      .exp = ExpOf,
      .widen = Widen,
      .multiply_and_add = MultiplyAndAdd,
      .sum = Sum,
  };
}

extern const Loops kLoops;
const Loops kLoops = LoopsWith(MultiplyInt8<float>, MultiplyInt8<BFloat16>);
