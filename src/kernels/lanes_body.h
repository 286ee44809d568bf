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

// The sum of the lanes, added in halves: i and i + 8, then i and i + 4, i + 2, i + 1.
inline float Sum(Lanes x) {
  x += __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  x += __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  x += __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  x += __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  return x[0];
}

inline float Largest(Lanes x) {
  x = Max(x, __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  x = Max(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
  x = Max(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
  x = Max(x, __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
  return x[0];
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
