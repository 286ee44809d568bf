// Included by loops_body.h. What attention and its gradients share: vectors, outer products, and what the
// rows of a tile see.

// As many numbers as a register has; wider vectors would be kept in memory.
typedef float Floats __attribute__((vector_size(4 * kWidth)));
typedef int32_t Integers __attribute__((vector_size(4 * kWidth)));
typedef uint32_t Words __attribute__((vector_size(4 * kWidth)));
typedef uint16_t HalfWords __attribute__((vector_size(2 * kWidth)));

constexpr bool kIsWide = kWidth == 16;
// Fewer rows are worked on token by token.
constexpr int64_t kFewRows = 8;
constexpr float kUnseen = -std::numeric_limits<float>::infinity();

inline Floats Each(float x) { return x - Floats{}; }

inline Floats Get(const float* x) {
  Floats found;
  __builtin_memcpy(&found, x, sizeof found);
  return found;
}

inline Floats Get(const BFloat16* x) {
  HalfWords halves;
  __builtin_memcpy(&halves, x, sizeof halves);
#if TDOCK_VECTOR_BITS == 512
  const auto wide = Reinterpret<Words>(_mm512_cvtepu16_epi32(Reinterpret<__m256i>(halves)));
#elif TDOCK_VECTOR_BITS == 256
  const auto wide = Reinterpret<Words>(_mm256_cvtepu16_epi32(Reinterpret<__m128i>(halves)));
#else
  const Words wide = __builtin_convertvector(halves, Words);
#endif
  return Reinterpret<Floats>(wide << 16);
}

// The first `count` < kWidth; others are 0.
template <class T>
inline Floats GetPart(const T* x, int64_t count) {
#if TDOCK_VECTOR_BITS == 512
  const auto present = static_cast<__mmask16>((1U << count) - 1);
  if constexpr (std::is_same_v<T, float>) {
    return Reinterpret<Floats>(_mm512_maskz_loadu_ps(present, x));
  } else {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(present, x));
    return Reinterpret<Floats>(Reinterpret<Words>(wide) << 16);
  }
#else
  float padded[kWidth] = {};
  for (int64_t i = 0; i < count; ++i) padded[i] = static_cast<float>(x[i]);
  return Get(padded);
#endif
}

inline void Put(Floats x, float* to) { __builtin_memcpy(to, &x, sizeof x); }

// Rounded to the nearest, ties to even, as static_cast; a NaN stays one.
inline void Put(Floats x, BFloat16* to) {
  const auto bits = Reinterpret<Words>(x);
  const Words rounded = (bits + ((bits >> 16) & 1U) + 0x7FFFU) >> 16;
  const Words chosen = x == x ? rounded : Words{} + 0x7FC0U;
  const HalfWords halves = __builtin_convertvector(chosen, HalfWords);
  __builtin_memcpy(to, &halves, sizeof halves);
}

template <class T>
inline void PutPart(Floats x, T* to, int64_t count) {
  T padded[kWidth];
  Put(x, padded);
  for (int64_t i = 0; i < count; ++i) to[i] = padded[i];
}

inline Floats Larger(Floats a, Floats b) { return a > b ? a : b; }

// eˣ of x ≤ 0 as Exp(), but 0 below -86, and of what is not seen.
inline Floats ExpOfNegative(Floats x) {
  constexpr float kRounds = 12582912.0F;
  const Floats given = x;
  const Floats rounded = x * 1.44269504088896341F + kRounds;
  const Floats n = rounded - kRounds;
  x = x - n * 0.693359375F;
  x = x - n * -2.12194440e-4F;
  Floats p = x * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * x + 8.3334519073e-3F;
  p = p * x + 4.1665795894e-2F;
  p = p * x + 1.6666665459e-1F;
  p = p * x + 5.0000001201e-1F;
  const Floats y = p * (x * x) + x + 1.0F;
  const Floats scaled = Reinterpret<Floats>(Reinterpret<Integers>(y) + (Reinterpret<Integers>(rounded) << 23));
  return given < -86.0F ? Floats{} : scaled;
}

// The positions first … end - 1.
struct Seen {
  int64_t first, end;
};

inline Seen SeenBy(int64_t token, const AttentionSight& sight) {
  if (sight.visible != nullptr) return {0, sight.sequence};
  const int64_t end = sight.first_position + token + 1;
  return {sight.window > 0 ? std::max<int64_t>(end - sight.window, 0) : 0, end};
}

// Tiles of rows: lanes are rows.
constexpr int kColumns = kIsWide ? 8 : 4;
constexpr int kRowVectors = 2;
constexpr int64_t kRowsOfTile = kRowVectors * kWidth;
// Positions whose weights stay in the nearest cache while they are used.
constexpr int64_t kPagesOfChunk = 4;

// sums[c] += Σ a[i · a_stride + c · kColumnStride] · b[i · b_stride …], in the order of i.
template <int kCount, int kVectors, int kColumnStride = 1>
inline __attribute__((always_inline)) void AddOuterProducts(const float* a, int64_t a_stride, const float* b,
                                                            int64_t b_stride, int64_t count,
                                                            Floats (&sums)[kCount][kVectors]) {
  for (int64_t i = 0; i < count; ++i, a += a_stride, b += b_stride) {
    Floats row[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) row[v] = Get(b + v * kWidth);
#pragma GCC unroll 16
    for (int c = 0; c < kCount; ++c) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sums[c][v] += a[c * kColumnStride] * row[v];
    }
  }
}

// Turns rows into columns.
inline void Transpose(Floats (&rows)[kWidth]) {
#if TDOCK_VECTOR_BITS == 512
  const auto swap = [&](auto step) __attribute__((always_inline)) {
    constexpr int kStep = decltype(step)::value;
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
      if ((i & kStep) != 0) continue;
      const Floats a = rows[i], b = rows[i + kStep];
      Integers low, high;
      for (int lane = 0; lane < kWidth; ++lane) {
        low[lane] = (lane & kStep) == 0 ? lane : kWidth + lane - kStep;
        high[lane] = (lane & kStep) == 0 ? lane + kStep : kWidth + lane;
      }
      rows[i] = __builtin_shuffle(a, b, low);
      rows[i + kStep] = __builtin_shuffle(a, b, high);
    }
  };
  swap(std::integral_constant<int, 8>());
  swap(std::integral_constant<int, 4>());
  swap(std::integral_constant<int, 2>());
  swap(std::integral_constant<int, 1>());
#else
  float from[kWidth][kWidth], to[kWidth][kWidth];
  __builtin_memcpy(from, rows, sizeof from);
  for (int i = 0; i < kWidth; ++i) {
    for (int j = 0; j < kWidth; ++j) to[j][i] = from[i][j];
  }
  __builtin_memcpy(rows, to, sizeof to);
#endif
}

// to[c · kStride + r] = row(r)[c]: `columns` numbers of each of `count` ≤ kStride rows, others 0.
template <int64_t kStride, class Row>
inline void PutColumns(const Row& row, int64_t count, int64_t columns, float* to) {
  for (int64_t r = 0; r < kStride; r += kWidth) {
    for (int64_t c = 0; c < columns; c += kWidth) {
      const int64_t width = std::min<int64_t>(columns - c, kWidth);
      Floats block[kWidth];
      for (int64_t i = 0; i < kWidth; ++i) {
        if (r + i >= count) {
          block[i] = Floats{};
        } else {
          block[i] = width == kWidth ? Get(row(r + i) + c) : GetPart(row(r + i) + c, width);
        }
      }
      Transpose(block);
      for (int64_t i = 0; i < width; ++i) Put(block[i], to + (c + i) * kStride + r);
    }
  }
}

// The other way: give(r, c, numbers, width) gets the columns c … c + width - 1 of row r.
template <int64_t kStride, class Give>
inline void GetRows(const float* from, int64_t count, int64_t columns, const Give& give) {
  for (int64_t r = 0; r < count; r += kWidth) {
    for (int64_t c = 0; c < columns; c += kWidth) {
      const int64_t width = std::min<int64_t>(columns - c, kWidth);
      Floats block[kWidth];
      for (int64_t i = 0; i < kWidth; ++i) block[i] = i < width ? Get(from + (c + i) * kStride + r) : Floats{};
      Transpose(block);
      for (int64_t i = 0; i < std::min<int64_t>(count - r, kWidth); ++i) give(r + i, c, block[i], width);
    }
  }
}

// What kVectors · kWidth rows see, from first_row to end_row - 1; rows behind these see what the last one sees.
template <int kVectors>
struct TileSight {
  static constexpr int64_t kStride = kVectors * kWidth;

  // `bits`: for each position from that of first_page on, which rows of the tile see it; or null.
  TileSight(const AttentionSight& sight, int64_t first_row, int64_t end_row, const uint32_t* of_positions, int64_t page)
      : bits(of_positions), first_page(page) {
    const auto token = [&](int64_t r) { return std::min(first_row + r, end_row - 1) / sight.group; };
    all = any = SeenBy(token(0), sight);
    for (int64_t r = 0; r < kStride; ++r) {
      const Seen seen = SeenBy(token(r), sight);
      first[r / kWidth][r % kWidth] = static_cast<int32_t>(seen.first);
      end[r / kWidth][r % kWidth] = static_cast<int32_t>(seen.end);
      all = {std::max(all.first, seen.first), std::min(all.end, seen.end)};
      any = {std::min(any.first, seen.first), std::max(any.end, seen.end)};
    }
    begin_page = any.first / kPageTokens;
    end_page = (any.end + kPageTokens - 1) / kPageTokens;
  }

  bool Any(int64_t page) const {
    if (bits == nullptr) return true;
    uint32_t found = 0;
    for (int64_t i = 0; i < kPageTokens; ++i) found |= bits[(page - first_page) * kPageTokens + i];
    return found != 0;
  }

  bool All(int64_t page) const {
    return bits == nullptr && page * kPageTokens >= all.first && (page + 1) * kPageTokens <= all.end;
  }

  // The places of a page that any row sees, unless there is a mask.
  Seen OfPage(int64_t page) const {
    const int64_t begin = page * kPageTokens;
    return {std::max(any.first - begin, int64_t{0}), std::min(any.end - begin, kPageTokens)};
  }

  Floats Hidden(Floats score, int v, int64_t position) const {
    const auto here = static_cast<int32_t>(position);
    score = here < first[v] || here >= end[v] ? Each(kUnseen) : score;
    if (bits == nullptr) return score;
    Words of_rows;
    for (int i = 0; i < kWidth; ++i) of_rows[i] = 1U << (v * kWidth + i);
    return (of_rows & bits[position - first_page * kPageTokens]) != 0U ? score : Each(kUnseen);
  }

  const uint32_t* const bits;
  const int64_t first_page;
  Seen all = {0, 0}, any = {0, 0};
  int64_t begin_page = 0, end_page = 0;
  Integers first[kVectors] = {}, end[kVectors] = {};
};

// For each position of the sequence, which of up to 32 rows see it.
inline void FindBits(const AttentionSight& sight, int64_t first_row, int64_t end_row, uint32_t* bits) {
  std::fill_n(bits, (sight.sequence + kPageTokens - 1) / kPageTokens * kPageTokens, 0U);
  for (int64_t row = first_row; row < end_row;) {
    const int64_t token = row / sight.group, next = std::min((token + 1) * sight.group, end_row);
    uint32_t of_token = 0;
    for (; row < next; ++row) of_token |= 1U << (row - first_row);
    const bool* const visible = sight.visible + token * sight.visible_stride;
    for (int64_t p = 0; p < sight.sequence; ++p) bits[p] |= -static_cast<uint32_t>(visible[p]) & of_token;
  }
}
