// Included by loops_body.h, after attention_vectors_body.h. Attention in two forms: that of a query token
// alone, as fast as memory gives keys and values, and that of many rows side by side, as fast as numbers are
// multiplied. Both give the same bits: the same products are added to the same sums in the same order.

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
    if (rows.sight.visible == nullptr) return;
    const bool* const visible = rows.sight.visible + token * rows.sight.visible_stride;
    for (int64_t position = seen.first; position < seen.end; ++position) {
      if (!visible[position]) hide(position);
    }
  }

  float Exponentials(float* of_head) const {
    Floats largest_of_lanes = Each(kUnseen);
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
  for (int64_t head = 0; head < rows.sight.group;) {
    const auto attend = [&](auto heads) {
      TokenAttention<decltype(heads)::value, T>{.rows = rows, .seen = SeenBy(token, rows.sight)}.Attend(token, head);
      head += decltype(heads)::value;
    };
    const int64_t left = rows.sight.group - head;
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

// ---- Many rows.

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

  TileSight<kVectors> sight = {rows.sight, first_row, end_row, bits, first_page};
  Floats largest[kVectors] = {}, totals[kVectors] = {};

  void ScorePage(int64_t page, float scale) {
    const float* const key = keys[page - first_page];
    const int64_t begin = page * kPageTokens;
    const bool all_see = sight.All(page);
    float* const to = weights + (page - sight.begin_page) * kPageTokens * kStride;
#pragma GCC unroll 1
    for (int64_t c = 0; c < kPageTokens; c += kColumns) {
      Floats found[kColumns][kVectors] = {};
      AddOuterProducts<kColumns, kVectors>(key + c, kPageTokens, queries, kStride, rows.head_dim, found);
#pragma GCC unroll 16
      for (int i = 0; i < kColumns; ++i) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          Floats score = found[i][v] * scale;
          if (!all_see) score = sight.Hidden(score, v, begin + c + i);
          largest[v] = Larger(score, largest[v]);
          Put(score, to + (c + i) * kStride + v * kWidth);
        }
      }
    }
  }

  void Exponentials(int64_t page) {
    float* const of_page = weights + (page - sight.begin_page) * kPageTokens * kStride;
    const Seen seen = sight.OfPage(page);
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
      if (!sight.Any(page)) continue;
      const Seen seen = sight.OfPage(page);
      AddOuterProducts<kCount, kVectors>(values[page - first_page] + d + seen.first * rows.head_dim, rows.head_dim,
                                         weights + ((page - sight.begin_page) * kPageTokens + seen.first) * kStride,
                                         kStride, seen.end - seen.first, sum);
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
      return row / rows.sight.group * rows.heads + row % rows.sight.group;
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
    for (Floats& of_rows : largest) of_rows = Each(kUnseen);
    PutColumns<kStride>(
        [&](int64_t r) {
          const int64_t row = first_row + r;
          return rows.queries + row / rows.sight.group * rows.token_stride + row % rows.sight.group * rows.head_stride;
        },
        end_row - first_row, rows.head_dim, queries);
    const float scale = 1.0F / std::sqrt(static_cast<float>(rows.head_dim));
    for (int64_t page = sight.begin_page; page < sight.end_page; ++page) {
      if (sight.Any(page)) ScorePage(page, scale);
    }
    std::fill_n(sums, rows.head_dim * kStride, 0.0F);
    for (int64_t page = sight.begin_page; page < sight.end_page; page += kPagesOfChunk) {
      const int64_t last = std::min(page + kPagesOfChunk, sight.end_page);
      for (int64_t p = page; p < last; ++p) {
        if (sight.Any(p)) Exponentials(p);
      }
      int64_t d = 0;
      for (; d + kColumns <= rows.head_dim; d += kColumns) MixColumns<kColumns>(d, page, last);
      for (; d < rows.head_dim; ++d) MixColumns<1>(d, page, last);
    }
    Give();
  }
};

template <class T>
void AttendRows(const AttentionRows<T>& rows) {
  const int64_t first_token = rows.begin_row / rows.sight.group, last_token = (rows.end_row - 1) / rows.sight.group;
  const Seen first = SeenBy(first_token, rows.sight), last = SeenBy(last_token, rows.sight);
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
      Widen(rows.keys + from, wide_keys, of_page);
      Widen(rows.values + from, wide_values,
            std::min(last.end - (first_page + i) * kPageTokens, kPageTokens) * rows.head_dim);
      keys[i] = wide_keys;
      values[i] = wide_values;
    }
  }
  float* const queries = take(rows.head_dim * kRowsOfTile);
  float* const sums = take(rows.head_dim * kRowsOfTile);
  auto* const bits = rows.sight.visible == nullptr ? nullptr : reinterpret_cast<uint32_t*>(take(pages * kPageTokens));
  float* const weights = take(pages * kPageTokens * kRowsOfTile);
  for (int64_t row = rows.begin_row; row < rows.end_row; row += kRowsOfTile) {
    const int64_t end = std::min(row + kRowsOfTile, rows.end_row);
    if (bits != nullptr) FindBits(rows.sight, row, end, bits);
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
  const int64_t first_token = rows.begin_row / rows.sight.group, last_token = (rows.end_row - 1) / rows.sight.group;
  // Few rows would leave most lanes without work.
  if (rows.end_row - rows.begin_row > kFewRows && last_token > first_token) return AttendRows(rows);
  for (int64_t token = first_token; token <= last_token; ++token) AttendToken(token, rows);
}
