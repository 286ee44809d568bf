// Included by loops_body.h. Numbers side by side, and sums whose order does not depend on what surrounds them.

// How many float32 numbers a register has.
constexpr int kWidth = std::max(TDOCK_VECTOR_BITS / 32, 4);

using BFloat16 = c10::BFloat16;

typedef float Lanes __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef uint16_t HalfBits __attribute__((vector_size(32)));

inline Lanes Same(float x) { return Lanes{} + x; }

template <class To, class From>
inline To Reinterpret(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

inline Lanes Load(const float* x) {
  Lanes lanes;
  __builtin_memcpy(&lanes, x, sizeof lanes);
  return lanes;
}

inline Lanes Load(const BFloat16* x) {
  HalfBits halves;
  __builtin_memcpy(&halves, x, sizeof halves);
#if TDOCK_VECTOR_BITS == 512
  const auto wide = Reinterpret<Bits>(_mm512_cvtepu16_epi32(Reinterpret<__m256i>(halves)));
#else
  const Bits wide = __builtin_convertvector(halves, Bits);
#endif
  return Reinterpret<Lanes>(wide << 16);
}

inline void Store(const Lanes& x, float* to) { __builtin_memcpy(to, &x, sizeof x); }

inline void Widen(const BFloat16* from, float* to, int64_t size) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) Store(Load(from + i), to + i);
  for (; i < size; ++i) to[i] = static_cast<float>(from[i]);
}

// The first `count` < kLanes, then `others`.
template <class T>
inline Lanes Load(const T* x, int64_t count, float others = 0) {
  float padded[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) padded[i] = i < count ? static_cast<float>(x[i]) : others;
  return Load(padded);
}

// To the nearest bfloat16, of two equally near the even one, in the upper halves; NaN as c10::BFloat16 has it.
inline Bits RoundedBits(Lanes x) {
  const Bits bits = Reinterpret<Bits>(x);
  const Bits rounded = bits + 0x7FFF + ((bits >> 16) & 1);
  return (x == x ? rounded : Bits{} + 0x7FC00000) & 0xFFFF0000;
}

// x as it is when it has been stored and loaded again.
template <class T>
inline Lanes Rounded(Lanes x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    return Reinterpret<Lanes>(RoundedBits(x));
  }
}

inline void Store(const Lanes& x, BFloat16* to) {
  const Bits wide = RoundedBits(x) >> 16;
#if TDOCK_VECTOR_BITS == 512
  const auto halves = Reinterpret<HalfBits>(_mm512_cvtepi32_epi16(Reinterpret<__m512i>(wide)));
#else
  const HalfBits halves = __builtin_convertvector(wide, HalfBits);
#endif
  __builtin_memcpy(to, &halves, sizeof halves);
}

template <class T>
inline void Store(const Lanes& x, T* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(x[i]);
}

// Whole lanes of rows from `begin` on, or, if kIsPart, the first `count` < kLanes of them.
template <bool kIsPart>
struct Place {
  int64_t begin;
  int64_t count;

  // What does not exist is `others`.
  template <class T>
  inline __attribute__((always_inline)) Lanes Read(const T* row, float others = 0) const {
    return kIsPart ? Load(row + begin, count, others) : Load(row + begin);
  }

  template <class T>
  inline __attribute__((always_inline)) void Write(const Lanes& x, T* row) const {
    if constexpr (kIsPart) {
      Store(x, row + begin, count);
    } else {
      Store(x, row + begin);
    }
  }
};

// Calls body(place) for the places of rows of `size` numbers, in order.
template <class Body>
inline __attribute__((always_inline)) void ForPlaces(int64_t size, Body&& body) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) body(Place<false>{i, kLanes});
  if (i < size) body(Place<true>{i, size - i});
}

// x, rounded before anything is added to it: the compiler does not multiply and add in one rounding across this.
inline Lanes Apart(Lanes x) {
#if TDOCK_VECTOR_BITS == 512
  asm("" : "+v"(x));
#elif TDOCK_VECTOR_BITS == 256
  struct Halves {
    __m256 low, high;
  };
  Halves halves = Reinterpret<Halves>(x);
  asm("" : "+x"(halves.low), "+x"(halves.high));
  x = Reinterpret<Lanes>(halves);
#endif
  return x;
}

inline Lanes Max(Lanes a, Lanes b) { return a > b ? a : b; }

// Adds the halves of groups of lanes: those of a become the first half of the result, those of b the second.
template <int kHalf>
inline Lanes AddHalves(Lanes a, Lanes b) {
  if constexpr (kHalf == 8) {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  } else if constexpr (kHalf == 4) {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
           __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  } else if constexpr (kHalf == 2) {
    return __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
           __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
  } else {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
           __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  }
}

// The sums of the lanes of kCount vectors, a power of two up to kLanes: lane i of the result is that of x[i mod
// kCount].
template <int kCount, int kHalf = 8>
inline Lanes SumsOf(const Lanes* x) {
  constexpr int kLeft = (kCount + 1) / 2;
  Lanes left[kLeft];
#pragma GCC unroll 16
  for (int i = 0; i < kLeft; ++i) left[i] = AddHalves<kHalf>(x[2 * i], x[std::min(2 * i + 1, kCount - 1)]);
  if constexpr (kHalf == 1) {
    return left[0];
  } else {
    return SumsOf<kLeft, kHalf / 2>(left);
  }
}

inline float Sum(Lanes x) { return SumsOf<1>(&x)[0]; }

inline float Largest(Lanes x) {
  float largest = x[0];
  for (int64_t lane = 1; lane < kLanes; ++lane) largest = std::max(largest, x[lane]);
  return largest;
}

// The products of kRows rows x and kOutputs rows w, each of `size` numbers: lane r·kOutputs + o is x[r] · w[o].
template <int kRows, int kOutputs, class X, class W>
inline Lanes Products(const X* const* x, const W* const* w, int64_t size) {
  static_assert(kRows * kOutputs <= kLanes);
  Lanes sums[kRows * kOutputs] = {};
  const auto add = [&](const Lanes* wide_x, Lanes wide_w, int o) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sums[r * kOutputs + o] += wide_x[r] * wide_w;
  };
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    Lanes wide_x[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) wide_x[r] = Load(x[r] + i);
#pragma GCC unroll 16
    for (int o = 0; o < kOutputs; ++o) add(wide_x, Load(w[o] + i), o);
  }
  if (i < size) {
    Lanes wide_x[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) wide_x[r] = Load(x[r] + i, size - i);
#pragma GCC unroll 16
    for (int o = 0; o < kOutputs; ++o) add(wide_x, Load(w[o] + i, size - i), o);
  }
  return SumsOf<kRows * kOutputs>(sums);
}

// eˣ within 2 units in the last place. The reduction of the argument and the polynomial are those of expf of Cephes
// (Moshier 1989, https://www.netlib.org/cephes).
inline Lanes Exp(Lanes x) {
  constexpr float kRounds = 12582912.0F;  // 1.5·2²³: a number added to it is rounded to an integer
  const Lanes lowest = Same(-104.0F), highest = Same(89.0F);  // beyond are 0 and infinity
  x = x < lowest ? lowest : x;
  x = x > highest ? highest : x;
  const Lanes rounded = x * 1.44269504088896341F + kRounds;
  const Lanes n = rounded - kRounds;
  x = x - n * 0.693359375F;
  x = x - n * -2.12194440e-4F;
  Lanes p = x * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * x + 8.3334519073e-3F;
  p = p * x + 4.1665795894e-2F;
  p = p * x + 1.6666665459e-1F;
  p = p * x + 5.0000001201e-1F;
  const Lanes y = p * (x * x) + x + 1.0F;
#if TDOCK_VECTOR_BITS == 512
  return Reinterpret<Lanes>(_mm512_maskz_scalef_ps(0xFFFF, Reinterpret<__m512>(y), Reinterpret<__m512>(n)));
#else
  // 2ⁿ in two factors, because n is -150 … 128.
  const Ints whole = Reinterpret<Ints>(rounded) - Reinterpret<Ints>(Same(kRounds));
  const Ints half = whole >> 1;
  const auto power = [](Ints exponent) __attribute__((always_inline)) {
    return Reinterpret<Lanes>((exponent + 127) << 23);
  };
  return y * power(half) * power(whole - half);
#endif
}
