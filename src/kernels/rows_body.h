// Included by loops.cc, as lanes_body.h. Functions of single numbers and of rows.

// Calls body(lanes of x at i, i, how many of them exist) for all `size` numbers of x; others are `others`.
template <class T, class Body>
inline __attribute__((always_inline)) void ForLanes(const T* x, int64_t size, float others, Body&& body) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) body(Load(x + i), i, kLanes);
  if (i < size) body(Load(x + i, size - i, others), i, size - i);
}

template <class T, class Function>
inline __attribute__((always_inline)) void Map(const T* x, T* y, int64_t size, Function&& function) {
  ForLanes(
      x, size, 0, [&](const Lanes& lanes, int64_t i, int64_t count) __attribute__((always_inline)) {
        Store(function(lanes), y + i, count);
      });
}

inline void ExpOf(const float* x, float* y, int64_t size) {
  Map(
      x, y, size, [](const Lanes& lanes) __attribute__((always_inline)) { return Exp(lanes); });
}

template <class T>
void SiluOf(const T* x, T* y, int64_t size) {
  Map(
      x, y, size, [](const Lanes& lanes) __attribute__((always_inline)) { return lanes / (1.0F + Exp(-lanes)); });
}

// erfc(x) for x ≥ 0, within about 2·10⁻⁷ of it relatively, where it is not tiny. Source: Press et al. 1992, Numerical
// Recipes in C, 2nd edition, §6.2, erfcc.
inline Lanes Erfc(Lanes x) {
  constexpr float kCoefficients[] = {0.17087277F,  -0.82215223F, 1.48851587F, -1.13520398F, 0.27886807F,
                                     -0.18628806F, 0.09678418F,  0.37409196F, 1.00002368F,  -1.26551223F};
  const Lanes t = 1.0F / (1.0F + 0.5F * x);
  Lanes p = {};
#pragma GCC unroll 16
  for (const float coefficient : kCoefficients) p = p * t + coefficient;
  return t * Exp(p - x * x);
}

// x · Φ(x) = x/2 · erfc(-x/√2).
template <class T>
void GeluOf(const T* x, T* y, int64_t size) {
  constexpr float kRootOfHalf = 0.70710678118654752F;
  Map(
      x, y, size, [](const Lanes& lanes) __attribute__((always_inline)) {
        const Lanes tail = Erfc((lanes < 0 ? -lanes : lanes) * kRootOfHalf);
        return lanes * 0.5F * (lanes < 0 ? tail : 2.0F - tail);
      });
}

// x/2 · (1 + tanh u) = x / (1 + e⁻²ᵘ), u = √(2/π) · (x + 0.044715·x³).
template <class T>
void GeluTanhOf(const T* x, T* y, int64_t size) {
  constexpr float kTwice = 1.5957691216057308F;  // 2·√(2/π)
  Map(
      x, y, size, [](const Lanes& lanes) __attribute__((always_inline)) {
        const Lanes cube = lanes * lanes * lanes;
        return lanes / (1.0F + Exp((lanes + cube * 0.044715F) * -kTwice));
      });
}

template <class T>
void LayerNormRow(const T* x, const float* weight, const float* bias, float eps, T* y, int64_t size) {
  const auto total = static_cast<float>(size);
  Lanes sums = {}, squares = {};
  ForLanes(
      x, size, 0, [&](const Lanes& lanes, int64_t, int64_t) __attribute__((always_inline)) { sums += lanes; });
  const float mean = Sum(sums) / total;
  // Where there is no number, its difference from the mean is 0.
  ForLanes(
      x, size, mean, [&](const Lanes& lanes, int64_t, int64_t) __attribute__((always_inline)) {
        const Lanes difference = lanes - mean;
        squares += difference * difference;
      });
  const float scale = 1.0F / std::sqrt(Sum(squares) / total + eps);
  ForLanes(
      x, size, 0, [&](const Lanes& lanes, int64_t i, int64_t count) __attribute__((always_inline)) {
        Lanes normed = (lanes - mean) * scale;
        const auto load = [&](const float* of) __attribute__((always_inline)) {
          return count == kLanes ? Load(of + i) : Load(of + i, count);
        };
        if (weight != nullptr) normed *= load(weight);
        if (bias != nullptr) normed += load(bias);
        Store(normed, y + i, count);
      });
}
