// Included by loops_body.h, after attention_vectors_body.h. Gradients of attention, of which only the sums
// of scores were kept: with weights P, scores S = Q · Kᵀ / √head_dim, and dO the gradient of the outputs O,
//
//   P = exp(S - log Σ exp(S)),   dV = Pᵀ · dO,   dP = dO · Vᵀ,   dS = P ∘ (dP - Σ dO ∘ O) / √head_dim,
//   dQ = dS · K,   dK = dSᵀ · Q
//
// Source: Dao et al. 2022, arXiv:2205.14135, appendix B.2. Lanes are rows, but for the sums over rows, dV and dK.

template <class T>
struct AttentionGradient {
  static constexpr int kVectors = kRowVectors;
  static constexpr int64_t kStride = kRowsOfTile;

  const AttentionGradientRows<T>& rows;
  const int64_t size = rows.head_dim;
  const int64_t width = (size + kWidth - 1) / kWidth * kWidth;
  const int64_t pages = (rows.sight.sequence + kPageTokens - 1) / kPageTokens;
  const float scale = 1.0F / std::sqrt(static_cast<float>(size));
  float* next = rows.scratch;
  // Of all positions: keys and values side by side, as in pages, keys one behind the other, and the sums.
  float* const keys = Take(pages * kPageTokens * size);
  float* const values = Take(pages * kPageTokens * size);
  float* const key_rows = Take(pages * kPageTokens * size);
  float* const key_sums = Take(pages * kPageTokens * width);
  float* const value_sums = Take(pages * kPageTokens * width);
  uint32_t* const bits = reinterpret_cast<uint32_t*>(Take(pages * kPageTokens));
  // Of a tile of rows: numbers as columns, and one behind the other.
  float* const queries = Take(size * kStride);
  float* const outgoing = Take(size * kStride);
  float* const query_sums = Take(size * kStride);
  float* const query_rows = Take(width * kStride);
  float* const outgoing_rows = Take(width * kStride);
  // Of some pages: P and dS.
  float* const weights = Take(kPagesOfChunk * kPageTokens * kStride);
  float* const changes = Take(kPagesOfChunk * kPageTokens * kStride);

  float* Take(int64_t count) {
    float* const taken = next;
    next += (count + kLanes - 1) / kLanes * kLanes;
    return taken;
  }

  const T* Row(const TokenRows<T>& of, int64_t row) const {
    return of.data + row / rows.sight.group * of.token_stride + row % rows.sight.group * of.head_stride;
  }

  // Rows of numbers, one behind the other, 0 behind each.
  template <class From>
  void PutRows(const From& from, int64_t count, float* to) const {
    for (int64_t r = 0; r < count; ++r) {
      const T* const row = from(r);
      for (int64_t d = 0; d < width; d += kWidth) {
        Put(d + kWidth <= size ? Get(row + d) : GetPart(row + d, size - d), to + r * width + d);
      }
    }
  }

  void PreparePositions() const {
    for (int64_t page = 0; page < pages; ++page) {
      const int64_t begin = page * kPageTokens, count = std::min(rows.sight.sequence - begin, kPageTokens);
      const auto key = [&](int64_t i) { return rows.keys.data + (begin + i) * rows.keys.token_stride; };
      const auto value = [&](int64_t i) { return rows.values.data + (begin + i) * rows.values.token_stride; };
      PutColumns<kPageTokens>(key, count, size, keys + begin * size);
      PutColumns<kPageTokens>(value, count, size, values + begin * size);
      for (int64_t i = 0; i < kPageTokens; ++i) {
        for (int64_t d = 0; d < size; ++d) {
          key_rows[(begin + i) * size + d] = i < count ? static_cast<float>(key(i)[d]) : 0.0F;
        }
      }
    }
    std::fill_n(key_sums, pages * kPageTokens * width, 0.0F);
    std::fill_n(value_sums, pages * kPageTokens * width, 0.0F);
  }

  // P and dS of a page.
  void ComputePage(int64_t page, const TileSight<kVectors>& sight, const Floats (&log_sums)[kVectors],
                   const Floats (&offsets)[kVectors], float* weight, float* change) const {
    const bool all_see = sight.All(page);
#pragma GCC unroll 1
    for (int64_t c = 0; c < kPageTokens; c += kColumns) {
      Floats found[kColumns][kVectors] = {};
      AddOuterProducts<kColumns, kVectors>(keys + page * kPageTokens * size + c, kPageTokens, queries, kStride, size,
                                           found);
#pragma GCC unroll 16
      for (int i = 0; i < kColumns; ++i) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          Floats score = found[i][v] * scale;
          if (!all_see) score = sight.Hidden(score, v, page * kPageTokens + c + i);
          Put(ExpOfNegative(score - log_sums[v]), weight + (c + i) * kStride + v * kWidth);
          found[i][v] = Floats{};
        }
      }
      AddOuterProducts<kColumns, kVectors>(values + page * kPageTokens * size + c, kPageTokens, outgoing, kStride, size,
                                           found);
#pragma GCC unroll 16
      for (int i = 0; i < kColumns; ++i) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          const int64_t at = (c + i) * kStride + v * kWidth;
          Put(Get(weight + at) * (found[i][v] - offsets[v]) * scale, change + at);
        }
      }
    }
  }

  // query_sums[d] += Σ dS · K[d], for kCount d, over the positions of a page.
  template <int kCount>
  void AddQueries(int64_t d, int64_t page, const float* change) const {
    Floats sum[kCount][kVectors];
#pragma GCC unroll 16
    for (int c = 0; c < kCount; ++c) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[c][v] = Get(query_sums + (d + c) * kStride + v * kWidth);
    }
    AddOuterProducts<kCount, kVectors>(key_rows + page * kPageTokens * size + d, size, change, kStride, kPageTokens,
                                       sum);
#pragma GCC unroll 16
    for (int c = 0; c < kCount; ++c) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) Put(sum[c][v], query_sums + (d + c) * kStride + v * kWidth);
    }
  }

  // sums[position] += Σ factors[position][row] · numbers[row], for kWide vectors from d on, over `count` rows.
  template <int kWide>
  void AddPositions(const float* factors, const float* numbers, int64_t count, int64_t d, float* sums) const {
    constexpr int kPositions = 4;
#pragma GCC unroll 1
    for (int64_t p = 0; p < kPageTokens; p += kPositions) {
      Floats sum[kPositions][kWide];
#pragma GCC unroll 16
      for (int c = 0; c < kPositions; ++c) {
#pragma GCC unroll 16
        for (int v = 0; v < kWide; ++v) sum[c][v] = Get(sums + (p + c) * width + d + v * kWidth);
      }
      AddOuterProducts<kPositions, kWide, static_cast<int>(kStride)>(factors + p * kStride, 1, numbers + d, width,
                                                                     count, sum);
#pragma GCC unroll 16
      for (int c = 0; c < kPositions; ++c) {
#pragma GCC unroll 16
        for (int v = 0; v < kWide; ++v) Put(sum[c][v], sums + (p + c) * width + d + v * kWidth);
      }
    }
  }

  void AddPage(const float* factors, const float* numbers, int64_t count, float* sums) const {
    constexpr int kWide = kIsWide ? 4 : 2;
    int64_t d = 0;
    for (; d + kWide * kWidth <= width; d += kWide * kWidth) AddPositions<kWide>(factors, numbers, count, d, sums);
    for (; d < width; d += kWidth) AddPositions<1>(factors, numbers, count, d, sums);
  }

  void AddTile(int64_t first_row, int64_t end_row) const {
    const int64_t count = end_row - first_row;
    if (rows.sight.visible != nullptr) FindBits(rows.sight, first_row, end_row, bits);
    const TileSight<kVectors> sight(rows.sight, first_row, end_row, rows.sight.visible != nullptr ? bits : nullptr, 0);
    const auto row_of = [&](const TokenRows<T>& of) {
      return [&, first_row](int64_t r) { return Row(of, first_row + r); };
    };
    PutColumns<kStride>(row_of(rows.queries), count, size, queries);
    PutColumns<kStride>(row_of(rows.outgoing), count, size, outgoing);
    PutRows(row_of(rows.queries), count, query_rows);
    PutRows(row_of(rows.outgoing), count, outgoing_rows);
    std::fill_n(query_sums, size * kStride, 0.0F);
    // What does not exist has queries and gradients of 0, and adds nothing.
    Floats log_sums[kVectors] = {}, offsets[kVectors] = {};
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = first_row + r;
      const T* const output = Row(rows.output, row);
      float offset = 0;
      for (int64_t d = 0; d < size; ++d) offset += outgoing_rows[r * width + d] * static_cast<float>(output[d]);
      offsets[r / kWidth][r % kWidth] = offset;
      log_sums[r / kWidth][r % kWidth] = rows.log_sums[row / rows.sight.group * rows.heads + row % rows.sight.group];
    }
    for (int64_t chunk = sight.begin_page; chunk < sight.end_page; chunk += kPagesOfChunk) {
      const int64_t last = std::min(chunk + kPagesOfChunk, sight.end_page);
      for (int64_t page = chunk; page < last; ++page) {
        if (!sight.Any(page)) continue;
        float* const weight = weights + (page - chunk) * kPageTokens * kStride;
        float* const change = changes + (page - chunk) * kPageTokens * kStride;
        ComputePage(page, sight, log_sums, offsets, weight, change);
        int64_t d = 0;
        for (; d + kColumns <= size; d += kColumns) AddQueries<kColumns>(d, page, change);
        for (; d < size; ++d) AddQueries<1>(d, page, change);
        AddPage(weight, outgoing_rows, count, value_sums + page * kPageTokens * width);
        AddPage(change, query_rows, count, key_sums + page * kPageTokens * width);
      }
    }
    GetRows<kStride>(query_sums, count, size, [&](int64_t r, int64_t d, const Floats& numbers, int64_t wide) {
      const int64_t row = first_row + r;
      T* const to = rows.query_gradient + (row / rows.sight.group * rows.heads + row % rows.sight.group) * size + d;
      wide == kWidth ? Put(numbers, to) : PutPart(numbers, to, wide);
    });
  }

  void Run() {
    PreparePositions();
    const int64_t end = (rows.sight.sequence - rows.sight.first_position) * rows.sight.group;
    for (int64_t row = 0; row < end; row += kStride) AddTile(row, std::min(row + kStride, end));
    for (int64_t position = 0; position < rows.sight.sequence; ++position) {
      const int64_t at = position * rows.kv_heads * size;
      for (int64_t d = 0; d < size; ++d) {
        rows.key_gradient[at + d] = static_cast<T>(key_sums[position * width + d]);
        rows.value_gradient[at + d] = static_cast<T>(value_sums[position * width + d]);
      }
    }
  }
};

template <class T>
void AddAttentionGradient(const AttentionGradientRows<T>& rows) {
  AttentionGradient<T>{.rows = rows}.Run();
}
