// Included by loops_body.h. The limits of limits.h.

// Independent sums, as many as registers hold beside the two factors: enough that none waits for the one before.
constexpr int kSums = kWidth == 16 ? 12 : kWidth == 8 ? 6 : 3;

inline float Total(const Lanes (&sums)[kSums]) {
  Lanes all = {};
  for (const Lanes& sum : sums) all += sum;
  float total = 0;
  for (int64_t i = 0; i < kLanes; ++i) total += all[i];
  return total;
}

// Gives the number of operations.
inline int64_t MultiplyAndAdd(int64_t times) {
  Lanes x = Same(0.5F), sums[kSums] = {};
  asm volatile("" : "+m"(x));  // unknown to the compiler
  for (int64_t i = 0; i < times; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kSums; ++j) sums[j] = sums[j] * x + x;
  }
  float total = Total(sums);
  asm volatile("" : "+m"(total));  // used, for all that it knows
  return times * kSums * kLanes * 2;
}

inline float Sum(const float* x, int64_t size) {
  Lanes sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums * kLanes <= size; i += kSums * kLanes) {
#pragma GCC unroll 16
    for (int64_t j = 0; j < kSums; ++j) sums[j] += Load(x + i + j * kLanes);
  }
  float total = Total(sums);
  for (; i < size; ++i) total += x[i];
  return total;
}
