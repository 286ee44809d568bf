// Included by loops_body.h. Sums over the logits of a row, in blocks of kLogitsOfBlock.

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

// logit / temperature, rounded, so that the log-probability of the only possible token is 0; `inverse` is 1 /
// temperature.
template <class T, class At>
inline __attribute__((always_inline)) Lanes Scaled(const T* logits, float inverse, At at) {
  return Apart(at.Read(logits, kImpossible) * inverse);
}

// What is subtracted from the logits of a block: the largest, unless none of them is possible.
inline float Reference(float largest) { return largest == kImpossible ? 0 : largest; }

template <class T>
void SumBlocks(const T* logits, float inverse, int64_t size, BlockSum* sums) {
  for (int64_t begin = 0; begin < size; begin += kLogitsOfBlock, ++sums) {
    const T* const block = logits + begin;
    const int64_t count = std::min(size - begin, kLogitsOfBlock);
    Lanes largest = Same(kImpossible), total = {};
    ForPlaces(
        count, [&](auto at) __attribute__((always_inline)) { largest = Max(at.Read(block, kImpossible), largest); });
    sums->largest = Largest(largest) * inverse;
    const float reference = Reference(sums->largest);
    ForPlaces(
        count, [&](auto at) __attribute__((always_inline)) { total += Exp(Scaled(block, inverse, at) - reference); });
    sums->sum = Sum(total);
  }
}

// The first of the logits of a block at which the running sum of exp(logit / temperature - largest) exceeds `target`,
// or, if rounding keeps the sum from that, the last that adds to it; 0 if none does.
template <class T>
int64_t FindInBlock(const T* logits, float inverse, float largest, double target, int64_t size) {
  float weights[kLogitsOfBlock];
  ForPlaces(
      size, [&](auto at) __attribute__((always_inline)) {
        at.Write(Exp(Scaled(logits, inverse, at) - Reference(largest)), weights);
      });
  double sum = 0;
  int64_t last = 0;
  for (int64_t i = 0; i < size; ++i) {
    if (!(weights[i] > 0)) continue;
    sum += static_cast<double>(weights[i]);
    last = i;
    if (sum > target) break;
  }
  return last;
}

// The first of the largest.
template <class T>
int64_t FindLargest(const T* logits, int64_t size) {
  Lanes largest = Same(kImpossible);
  ForPlaces(
      size, [&](auto at) __attribute__((always_inline)) { largest = Max(at.Read(logits, kImpossible), largest); });
  const float wanted = Largest(largest);
  for (int64_t i = 0; i < size; ++i) {
    if (static_cast<float>(logits[i]) == wanted) return i;
  }
  return 0;
}

template <class T>
void LogProbsOfRow(const T* logits, float inverse, float log_sum, float* to, int64_t size) {
  ForPlaces(
      size, [&](auto at) __attribute__((always_inline)) { at.Write(Scaled(logits, inverse, at) - log_sum, to); });
}

template <class T>
float EntropyOfRow(const T* logits, float inverse, float log_sum, int64_t size) {
  double total = 0;
  for (int64_t begin = 0; begin < size; begin += kLogitsOfBlock) {
    Lanes sum = {};
    ForPlaces(
        std::min(size - begin, kLogitsOfBlock), [&](auto at) __attribute__((always_inline)) {
          const Lanes log_prob = Scaled(logits + begin, inverse, at) - log_sum;
          const Lanes p = Exp(log_prob);
          sum += p == 0 ? p : p * log_prob;  // where p is 0, log p is not finite
        });
    total += static_cast<double>(Sum(sum));
  }
  return static_cast<float>(-total);
}

// With p the probabilities: gradient = ((1 at the target - p)·of_log_prob - p·(log p + entropy)·of_entropy) /
// temperature.
template <class T>
void LogProbGradient(const T* logits, float inverse, const ScoreGradient& of, T* gradient, int64_t size) {
  const auto of_probabilities = [&](const T* from, auto* to, int64_t count) __attribute__((always_inline)) {
    ForPlaces(
        count, [&](auto at) __attribute__((always_inline)) {
          const Lanes log_prob = Scaled(from, inverse, at) - of.log_sum;
          const Lanes p = Exp(log_prob);
          const Lanes factor = (of.of_log_prob + of.of_entropy * (log_prob + of.entropy)) * -inverse;
          at.Write(p == 0 ? p : p * factor, to);  // where p is 0, log p is not finite
        });
  };
  of_probabilities(logits, gradient, size);
  float at_target = 0;
  of_probabilities(logits + of.target, &at_target, 1);
  gradient[of.target] = static_cast<T>(at_target + of.of_log_prob * inverse);
}
