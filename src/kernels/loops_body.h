// Included by loops.cc, as lanes_body.h, after the others.

template <class T>
constexpr TypedLoops<T> kTypedLoops = {
    .attend = AttendAll<T>,
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

constexpr Loops kLoops = {
    .instructions = kInstructions,
    .tile_rows = kTileRows,
    .multiplies_pairs = kMultipliesPairs,
    .of_float = kTypedLoops<float>,
    .of_bfloat16 = kTypedLoops<BFloat16>,
    .exp = ExpOf,
    .widen = Widen,
};
