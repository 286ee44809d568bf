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
constexpr TypedLoops<T> kTypedLoops = {
    .attend = Attend<T>,
    .attention_gradient = AddAttentionGradient<T>,
    .pack_tile = PackTile<T>,
    .pack_panel = PackPanel<T>,
    .multiply = MultiplyAll<T>,
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

extern const Loops kLoops;
const Loops kLoops = {
    .instructions = kInstructions,
    .tile_rows = kTileRows,
    .vector_bits = TDOCK_VECTOR_BITS,
    .multiplies_pairs = kMultipliesPairs,
    .of_float = kTypedLoops<float>,
    .of_bfloat16 = kTypedLoops<BFloat16>,
    .exp = ExpOf,
    .widen = Widen,
    .multiply_and_add = MultiplyAndAdd,
    .sum = Sum,
};
