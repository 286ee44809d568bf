// Included by loops_body.h. Attention in two forms: that of a query token alone, as fast as memory gives
// keys and values, and that of many rows side by side, as fast as numbers are multiplied. Both give the same bits: the
// same products are added to the same sums in the same order.

typedef float Floats __attribute__((vector_size(4 * kWidth)));
typedef int32_t Integers __attribute__((vector_size(4 * kWidth)));
typedef uint32_t Words __attribute__((vector_size(4 * kWidth)));
typedef uint16_t HalfWords __attribute__((vector_size(2 * kWidth)));

constexpr bool kIsWide = kWidth == 16;
// Fewer rows are worked on token by token.
constexpr int64_t kFewRows = 8;
constexpr float kUnseen = -std::numeric_limits<float>::infinity();

inline Floats All(float x) { return x - Floats{}; }

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

// What the token of a row sees: the positions first … end - 1.
struct Seen {
  int64_t first, end;
};

template <class T>
inline Seen SeenBy(int64_t token, const AttentionRows<T>& rows) {
  if (rows.visible != nullptr) return {0, rows.sequence};
  const int64_t end = rows.first_position + token + 1;
  return {rows.window > 0 ? std::max<int64_t>(end - rows.window, 0) : 0, end};
}

// ---- One query token.

template <int kHeads, class T>
struct TokenAttention {
  // So many vectors of positions, or of outputs, are worked on side by side.
  static constexpr int64_t kVectors = kIsWide ? (kHeads <= 6 ? 4 : 2) : (kHeads <= 2 ? 4 : 2);
  static constexpr int64_t kVectorsOfPage = kPageTokens / kWidth;

  const AttentionRows<T>& rows;
  const Seen seen;
  const int64_t first_page = seen.first / kPageTokens, end_page = (seen.end + kPageTokens - 1) / kPageTokens;
  const int64_t width = (rows.head_dim + kWidth - 1) / kWidth * kWidth;
  const int64_t stride = (end_page - first_page) * kPageTokens;  // of scores
  float* const queries = rows.scratch;                           // [kHeads][width]
  float* const sums = queries + kHeads * width;                  // [kHeads][width]
  float* const scores = sums + kHeads * width;                   // [kHeads][stride]

  const T* Keys(int64_t page) const { return rows.keys + rows.pages[page] * rows.page_stride; }
  const T* Values(int64_t page) const { return rows.values + rows.pages[page] * rows.page_stride; }

  // Scores of kCount vectors of positions from `vector` on, of which a page has kVectorsOfPage.
  template <int64_t kCount>
  void ScoreVectors(int64_t vector, int64_t vectors, float scale) const {
    const T* keys[kCount];
    const T* next[kCount];
    for (int64_t b = 0; b < kCount; ++b) {
      const auto at = [&](int64_t i) { return Keys(first_page + i / kVectorsOfPage) + i % kVectorsOfPage * kWidth; };
      keys[b] = at(vector + b);
      next[b] = vector + b + kCount < vectors ? at(vector + b + kCount) : Values(first_page) + b * kWidth;
    }
    Floats found[kHeads][kCount] = {};
    for (int64_t d = 0; d < rows.head_dim; ++d) {
#pragma GCC unroll 16
      for (int64_t b = 0; b < kCount; ++b) {
        if constexpr (kIsWide) __builtin_prefetch(next[b] + d * kPageTokens);
        const Floats key = Get(keys[b] + d * kPageTokens);
#pragma GCC unroll 16
        for (int g = 0; g < kHeads; ++g) found[g][b] += queries[g * width + d] * key;
      }
    }
    for (int g = 0; g < kHeads; ++g) {
      for (int64_t b = 0; b < kCount; ++b) Put(found[g][b] * scale, scores + g * stride + (vector + b) * kWidth);
    }
  }

  // Replaces what is not seen.
  void Hide(int64_t token) const {
    const int64_t first = first_page * kPageTokens;
    const auto hide = [&](int64_t position) {
      for (int g = 0; g < kHeads; ++g) scores[g * stride + position - first] = kUnseen;
    };
    for (int64_t position = first; position < seen.first; ++position) hide(position);
    for (int64_t position = seen.end; position < end_page * kPageTokens; ++position) hide(position);
    if (rows.visible == nullptr) return;
    const bool* const visible = rows.visible + token * rows.visible_stride;
    for (int64_t position = seen.first; position < seen.end; ++position) {
      if (!visible[position]) hide(position);
    }
  }

  float Exponentials(float* of_head) const {
    Floats largest_of_lanes = All(kUnseen);
    for (int64_t i = 0; i < stride; i += kWidth) largest_of_lanes = Larger(Get(of_head + i), largest_of_lanes);
    float largest = largest_of_lanes[0];
    for (int lane = 1; lane < kWidth; ++lane) largest = std::max(largest, largest_of_lanes[lane]);
    for (int64_t i = 0; i < stride; i += kWidth) Put(ExpOfNegative(Get(of_head + i) - largest), of_head + i);
    return largest;
  }

  // Σ weights · values, for kCount whole lanes from d on, or for part of one; the sums of the weights in totals.
  template <int64_t kCount, bool kIsPart>
  void MixLanes(int64_t d, float* totals) const {
    Floats sum[kHeads][kCount] = {};
    float total[kHeads] = {};
    const int64_t part = rows.head_dim - d;
    for (int64_t page = first_page; page < end_page; ++page) {
      const int64_t begin = page * kPageTokens;
      const int64_t first = std::max(seen.first - begin, int64_t{0}), end = std::min(seen.end - begin, kPageTokens);
      const T* const values = Values(page) + d;
      const T* const next = page + 1 < end_page ? Values(page + 1) + d : values;
      const float* const weights = scores + (page - first_page) * kPageTokens;
      for (int64_t i = first; i < end; ++i) {
#pragma GCC unroll 16
        for (int g = 0; g < kHeads; ++g) total[g] += weights[g * stride + i];
#pragma GCC unroll 16
        for (int64_t v = 0; v < kCount; ++v) {
          const T* const from = values + i * rows.head_dim + v * kWidth;
          if (sizeof(T) == 4 || v % 2 == 0) __builtin_prefetch(next + i * rows.head_dim + v * kWidth);
          const Floats value = kIsPart ? GetPart(from, part) : Get(from);
#pragma GCC unroll 16
          for (int g = 0; g < kHeads; ++g) sum[g][v] += weights[g * stride + i] * value;
        }
      }
    }
    for (int g = 0; g < kHeads; ++g) {
      totals[g] = total[g];
      for (int64_t v = 0; v < kCount; ++v) Put(sum[g][v], sums + g * width + d + v * kWidth);
    }
  }

  void Attend(int64_t token, int64_t first_head) const {
    const T* const asked = rows.queries + token * rows.token_stride + first_head * rows.head_stride;
    for (int g = 0; g < kHeads; ++g) {
      for (int64_t d = 0; d < rows.head_dim; ++d) {
        queries[g * width + d] = static_cast<float>(asked[g * rows.head_stride + d]);
      }
    }
    const float scale = 1.0F / std::sqrt(static_cast<float>(rows.head_dim));
    const int64_t vectors = stride / kWidth;
    int64_t vector = 0;
    for (; vector + kVectors <= vectors; vector += kVectors) ScoreVectors<kVectors>(vector, vectors, scale);
    for (; vector < vectors; ++vector) ScoreVectors<1>(vector, vectors, scale);
    Hide(token);
    float largest[kHeads], totals[kHeads];
    for (int g = 0; g < kHeads; ++g) largest[g] = Exponentials(scores + g * stride);
    int64_t d = 0;
    for (; d + kVectors * kWidth <= rows.head_dim; d += kVectors * kWidth) MixLanes<kVectors, false>(d, totals);
    for (; d + kWidth <= rows.head_dim; d += kWidth) MixLanes<1, false>(d, totals);
    if (d < rows.head_dim) MixLanes<1, true>(d, totals);
    const int64_t place = token * rows.heads + first_head;
    for (int g = 0; g < kHeads; ++g) {
      T* const output = rows.output + (place + g) * rows.head_dim;
      for (d = 0; d + kWidth <= rows.head_dim; d += kWidth) {
        Put(Get(sums + g * width + d) / totals[g], output + d);
      }
      if (d < rows.head_dim) PutPart(Get(sums + g * width + d) / totals[g], output + d, rows.head_dim - d);
      if (rows.log_sums != nullptr) rows.log_sums[place + g] = largest[g] + std::log(totals[g]);
    }
  }
};

template <class T>
void AttendToken(int64_t token, const AttentionRows<T>& rows) {
  for (int64_t head = 0; head < rows.group;) {
    const auto attend = [&](auto heads) {
      TokenAttention<decltype(heads)::value, T>{.rows = rows, .seen = SeenBy(token, rows)}.Attend(token, head);
      head += decltype(heads)::value;
    };
    const int64_t left = rows.group - head;
    if (kIsWide && left >= 8) {
      attend(std::integral_constant < int, kIsWide ? 8 : 1 > ());
    } else if (kIsWide && left >= 6) {
      attend(std::integral_constant < int, kIsWide ? 6 : 1 > ());
    } else if (left >= 4) {
      attend(std::integral_constant<int, 4>());
    } else if (left == 3) {
      attend(std::integral_constant<int, 3>());
    } else if (left == 2) {
      attend(std::integral_constant<int, 2>());
    } else {
      attend(std::integral_constant<int, 1>());
    }
  }
}

// ---- Many rows: lanes are rows.

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

// Up to kVectors · kWidth rows, from `first_row` on, over keys and values in float32.
template <int kVectors, class T>
struct TileAttention {
  static constexpr int64_t kStride = kVectors * kWidth;

  const AttentionRows<T>& rows;
  const int64_t first_row, end_row;
  const float* const* keys;    // of all pages, from first_page on
  const float* const* values;  // the same
  const int64_t first_page;    // of these
  const uint32_t* const bits;  // for each position, from that page on, which rows of the tile see it; or null
  float* const queries;        // [head_dim][kStride]
  float* const sums;           // the same
  float* const weights;        // [positions][kStride], from the tile's first page on

  // What the rows see: all of them, and any.
  Seen all = {0, 0}, any = {0, 0};
  int64_t begin_page = 0, end_page = 0;
  Integers first[kVectors] = {}, end[kVectors] = {};
  Floats largest[kVectors] = {}, totals[kVectors] = {};

  int64_t Token(int64_t r) const { return std::min(first_row + r, end_row - 1) / rows.group; }

  void Look() {
    all = any = SeenBy(Token(0), rows);
    for (int64_t r = 0; r < kStride; ++r) {
      const Seen seen = SeenBy(Token(r), rows);
      first[r / kWidth][r % kWidth] = static_cast<int32_t>(seen.first);
      end[r / kWidth][r % kWidth] = static_cast<int32_t>(seen.end);
      all = {std::max(all.first, seen.first), std::min(all.end, seen.end)};
      any = {std::min(any.first, seen.first), std::max(any.end, seen.end)};
    }
    begin_page = any.first / kPageTokens;
    end_page = (any.end + kPageTokens - 1) / kPageTokens;
    for (int v = 0; v < kVectors; ++v) largest[v] = All(kUnseen);
  }

  bool IsSeen(int64_t page) const {
    if (bits == nullptr) return true;
    uint32_t found = 0;
    for (int64_t i = 0; i < kPageTokens; ++i) found |= bits[(page - first_page) * kPageTokens + i];
    return found != 0;
  }

  Floats Hidden(Floats score, int v, int64_t position) const {
    const auto here = static_cast<int32_t>(position);
    score = here < first[v] || here >= end[v] ? All(kUnseen) : score;
    if (bits == nullptr) return score;
    Words of_rows;
    for (int i = 0; i < kWidth; ++i) of_rows[i] = 1U << (v * kWidth + i);
    return (of_rows & bits[position - first_page * kPageTokens]) != 0U ? score : All(kUnseen);
  }

  void ScorePage(int64_t page, float scale) {
    const float* const key = keys[page - first_page];
    const int64_t begin = page * kPageTokens;
    const bool all_see = bits == nullptr && begin >= all.first && begin + kPageTokens <= all.end;
    float* const to = weights + (page - begin_page) * kPageTokens * kStride;
#pragma GCC unroll 1
    for (int64_t c = 0; c < kPageTokens; c += kColumns) {
      Floats found[kColumns][kVectors] = {};
      AddOuterProducts<kColumns, kVectors>(key + c, kPageTokens, queries, kStride, rows.head_dim, found);
#pragma GCC unroll 16
      for (int i = 0; i < kColumns; ++i) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          Floats score = found[i][v] * scale;
          if (!all_see) score = Hidden(score, v, begin + c + i);
          largest[v] = Larger(score, largest[v]);
          Put(score, to + (c + i) * kStride + v * kWidth);
        }
      }
    }
  }

  // The positions of a page that any row sees.
  Seen OfPage(int64_t page) const {
    const int64_t begin = page * kPageTokens;
    return {std::max(any.first - begin, int64_t{0}), std::min(any.end - begin, kPageTokens)};
  }

  void Exponentials(int64_t page) {
    float* const of_page = weights + (page - begin_page) * kPageTokens * kStride;
    const Seen seen = OfPage(page);
    for (int64_t i = seen.first; i < seen.end; ++i) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        float* const at = of_page + i * kStride + v * kWidth;
        const Floats weight = ExpOfNegative(Get(at) - largest[v]);
        Put(weight, at);
        totals[v] += weight;
      }
    }
  }

  template <int kCount>
  void MixColumns(int64_t d, int64_t page, int64_t last) {
    Floats sum[kCount][kVectors];
#pragma GCC unroll 16
    for (int c = 0; c < kCount; ++c) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[c][v] = Get(sums + (d + c) * kStride + v * kWidth);
    }
    for (; page < last; ++page) {
      if (!IsSeen(page)) continue;
      const Seen seen = OfPage(page);
      AddOuterProducts<kCount, kVectors>(values[page - first_page] + d + seen.first * rows.head_dim, rows.head_dim,
                                         weights + ((page - begin_page) * kPageTokens + seen.first) * kStride, kStride,
                                         seen.end - seen.first, sum);
    }
#pragma GCC unroll 16
    for (int c = 0; c < kCount; ++c) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) Put(sum[c][v], sums + (d + c) * kStride + v * kWidth);
    }
  }

  void Give() {
    for (int64_t d = 0; d < rows.head_dim; ++d) {
      for (int v = 0; v < kVectors; ++v) {
        float* const at = sums + d * kStride + v * kWidth;
        Put(Get(at) / totals[v], at);
      }
    }
    const auto place = [&](int64_t r) {
      const int64_t row = first_row + r;
      return row / rows.group * rows.heads + row % rows.group;
    };
    GetRows<kStride>(sums, end_row - first_row, rows.head_dim,
                     [&](int64_t r, int64_t d, const Floats& numbers, int64_t width) {
                       T* const output = rows.output + place(r) * rows.head_dim + d;
                       width == kWidth ? Put(numbers, output) : PutPart(numbers, output, width);
                     });
    if (rows.log_sums == nullptr) return;
    for (int64_t r = 0; r < end_row - first_row; ++r) {
      const int64_t v = r / kWidth, lane = r % kWidth;
      rows.log_sums[place(r)] = largest[v][lane] + std::log(totals[v][lane]);
    }
  }

  void Attend() {
    Look();
    PutColumns<kStride>(
        [&](int64_t r) {
          const int64_t row = first_row + r;
          return rows.queries + row / rows.group * rows.token_stride + row % rows.group * rows.head_stride;
        },
        end_row - first_row, rows.head_dim, queries);
    const float scale = 1.0F / std::sqrt(static_cast<float>(rows.head_dim));
    for (int64_t page = begin_page; page < end_page; ++page) {
      if (IsSeen(page)) ScorePage(page, scale);
    }
    std::fill_n(sums, rows.head_dim * kStride, 0.0F);
    for (int64_t page = begin_page; page < end_page; page += kPagesOfChunk) {
      const int64_t last = std::min(page + kPagesOfChunk, end_page);
      for (int64_t p = page; p < last; ++p) {
        if (IsSeen(p)) Exponentials(p);
      }
      int64_t d = 0;
      for (; d + kColumns <= rows.head_dim; d += kColumns) MixColumns<kColumns>(d, page, last);
      for (; d < rows.head_dim; ++d) MixColumns<1>(d, page, last);
    }
    Give();
  }
};

inline void WidenPage(const BFloat16* from, float* to, int64_t size) {
  int64_t i = 0;
  for (; i + kWidth <= size; i += kWidth) Put(Get(from + i), to + i);
  for (; i < size; ++i) to[i] = static_cast<float>(from[i]);
}

// For each position of the sequence, which of up to 32 rows see it.
template <class T>
void FindBits(const AttentionRows<T>& rows, int64_t first_row, int64_t end_row, uint32_t* bits) {
  std::fill_n(bits, (rows.sequence + kPageTokens - 1) / kPageTokens * kPageTokens, 0U);
  for (int64_t row = first_row; row < end_row;) {
    const int64_t token = row / rows.group, next = std::min((token + 1) * rows.group, end_row);
    uint32_t of_token = 0;
    for (; row < next; ++row) of_token |= 1U << (row - first_row);
    const bool* const visible = rows.visible + token * rows.visible_stride;
    for (int64_t p = 0; p < rows.sequence; ++p) bits[p] |= -static_cast<uint32_t>(visible[p]) & of_token;
  }
}

template <class T>
void AttendRows(const AttentionRows<T>& rows) {
  const int64_t first_token = rows.begin_row / rows.group, last_token = (rows.end_row - 1) / rows.group;
  const Seen first = SeenBy(first_token, rows), last = SeenBy(last_token, rows);
  const int64_t first_page = first.first / kPageTokens, end_page = (last.end + kPageTokens - 1) / kPageTokens;
  const int64_t pages = end_page - first_page, of_page = kPageTokens * rows.head_dim;
  float* scratch = rows.scratch;
  const auto take = [&](int64_t size) {
    float* const taken = scratch;
    scratch += (size + kWidth - 1) / kWidth * kWidth;
    return taken;
  };
  const auto pointers = [&] { return reinterpret_cast<const float**>(take(2 * pages)); };
  const float** const keys = pointers();
  const float** const values = pointers();
  for (int64_t i = 0; i < pages; ++i) {
    const int64_t from = rows.pages[first_page + i] * rows.page_stride;
    if constexpr (std::is_same_v<T, float>) {
      keys[i] = rows.keys + from;
      values[i] = rows.values + from;
    } else {
      float* const wide_keys = take(of_page);
      float* const wide_values = take(of_page);
      WidenPage(rows.keys + from, wide_keys, of_page);
      WidenPage(rows.values + from, wide_values,
                std::min(last.end - (first_page + i) * kPageTokens, kPageTokens) * rows.head_dim);
      keys[i] = wide_keys;
      values[i] = wide_values;
    }
  }
  float* const queries = take(rows.head_dim * kRowsOfTile);
  float* const sums = take(rows.head_dim * kRowsOfTile);
  auto* const bits = rows.visible == nullptr ? nullptr : reinterpret_cast<uint32_t*>(take(pages * kPageTokens));
  float* const weights = take(pages * kPageTokens * kRowsOfTile);
  for (int64_t row = rows.begin_row; row < rows.end_row; row += kRowsOfTile) {
    const int64_t end = std::min(row + kRowsOfTile, rows.end_row);
    if (bits != nullptr) FindBits(rows, row, end, bits);
    const auto attend = [&](auto vectors) {
      TileAttention<decltype(vectors)::value, T>{.rows = rows,
                                                 .first_row = row,
                                                 .end_row = end,
                                                 .keys = keys,
                                                 .values = values,
                                                 .first_page = first_page,
                                                 .bits = bits,
                                                 .queries = queries,
                                                 .sums = sums,
                                                 .weights = weights}
          .Attend();
    };
    if (end - row <= kWidth) {
      attend(std::integral_constant<int, 1>());
    } else {
      attend(std::integral_constant<int, kRowVectors>());
    }
  }
}

template <class T>
void Attend(const AttentionRows<T>& rows) {
  const int64_t first_token = rows.begin_row / rows.group, last_token = (rows.end_row - 1) / rows.group;
  // Few rows would leave most lanes without work.
  if (rows.end_row - rows.begin_row > kFewRows && last_token > first_token) return AttendRows(rows);
  for (int64_t token = first_token; token <= last_token; ++token) AttendToken(token, rows);
}
