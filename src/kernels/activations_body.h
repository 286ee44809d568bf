// Included by loops_body.h. Activations: each has the function of a number and its slope.

inline void ExpOf(const float* x, float* y, int64_t size) {
  ForPlaces(
      size, [&](auto at) __attribute__((always_inline)) { at.Write(Exp(at.Read(x)), y); });
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

inline Lanes Logistic(Lanes x) { return 1.0F / (1.0F + Exp(-x)); }

struct Silu {
  static Lanes Of(Lanes x) { return x / (1.0F + Exp(-x)); }
  static Lanes Slope(Lanes x) {
    const Lanes s = Logistic(x);
    return s * (1.0F + x * (1.0F - s));
  }
};

struct Relu {
  static Lanes Of(Lanes x) { return x < 0 ? Lanes{} : x; }
  static Lanes Slope(Lanes x) { return x > 0 ? Same(1) : Lanes{}; }
};

// x · Φ(x) = x/2 · erfc(-x/√2).
struct Gelu {
  static Lanes TwiceNormal(Lanes x) {
    const Lanes tail = Erfc((x < 0 ? -x : x) * 0.70710678118654752F);
    return x < 0 ? tail : 2.0F - tail;
  }
  static Lanes Of(Lanes x) { return x * 0.5F * TwiceNormal(x); }
  static Lanes Slope(Lanes x) {
    constexpr float kDensityAtZero = 0.3989422804014327F;  // 1/√(2π)
    return 0.5F * TwiceNormal(x) + x * (kDensityAtZero * Exp(x * x * -0.5F));
  }
};

// x/2 · (1 + tanh u) = x · σ(2u), 2u = 2·√(2/π) · (x + 0.044715·x³).
struct GeluTanh {
  static constexpr float kTwice = 1.5957691216057308F;
  static Lanes Of(Lanes x) {
    const Lanes cube = x * x * x;
    return x / (1.0F + Exp((x + cube * 0.044715F) * -kTwice));
  }
  static Lanes Slope(Lanes x) {
    const Lanes square = x * x;
    const Lanes s = Logistic((x + square * x * 0.044715F) * kTwice);
    return s + x * s * (1.0F - s) * (kTwice + square * (3 * 0.044715F * kTwice));
  }
};

template <class Function, class T>
void Apply(const T* x, T* y, int64_t size) {
  ForPlaces(
      size, [&](auto at) __attribute__((always_inline)) { at.Write(Function::Of(at.Read(x)), y); });
}

template <class Function, class T>
void ApplyGradient(const T* x, const T* dy, T* dx, int64_t size) {
  ForPlaces(
      size, [&](auto at) __attribute__((always_inline)) { at.Write(at.Read(dy) * Function::Slope(at.Read(x)), dx); });
}

template <class Function, class T>
void Gate(const T* gate, const T* up, T* y, int64_t size) {
  ForPlaces(
      size, [&](auto at)
                __attribute__((always_inline)) { at.Write(Rounded<T>(Function::Of(at.Read(gate))) * at.Read(up), y); });
}

template <class Function, class T>
void GateGradient(const T* gate, const T* up, const T* dy, T* dgate, T* dup, int64_t size) {
  ForPlaces(
      size, [&](auto at) __attribute__((always_inline)) {
        const Lanes x = at.Read(gate), outgoing = at.Read(dy);
        at.Write(outgoing * Rounded<T>(Function::Of(x)), dup);
        at.Write(outgoing * at.Read(up) * Function::Slope(x), dgate);
      });
}

template <class Function, class T>
constexpr ActivationLoops<T> kActivationLoops = {
    .apply = Apply<Function, T>,
    .gradient = ApplyGradient<Function, T>,
    .gate = Gate<Function, T>,
    .gate_gradient = GateGradient<Function, T>,
};
