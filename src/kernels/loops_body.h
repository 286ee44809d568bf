// Included by loops.cc, as lanes_body.h, after the others.

inline void ExpOf(const float* x, float* y, int64_t size) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) Store(Exp(Load(x + i)), y + i);
  if (i < size) Store(Exp(Load(x + i, size - i)), y + i, size - i);
}

constexpr Loops kLoops = {
    .instructions = kInstructions,
    .attend_float = AttendAll<float>,
    .attend_bfloat16 = AttendAll<BFloat16>,
    .exp = ExpOf,
};
