// Included by loops_body.h. Products of packed rows with panels of weights (panels.h). Each output has one
// sum, to which its products are added in the order of the inputs, so that it is the same in tiles of every form.
//
// The instruction set defines kTileRows, the most rows of a tile, and kNarrow, how many registers of outputs a tile of
// that many rows has.

typedef float Register __attribute__((vector_size(kWidth * 4)));
typedef uint32_t RegisterBits __attribute__((vector_size(kWidth * 4)));
typedef int32_t RegisterInts __attribute__((vector_size(kWidth * 4)));

inline Register LoadRegister(const float* x) {
  Register loaded;
  __builtin_memcpy(&loaded, x, sizeof loaded);
  return loaded;
}

// The weights of some outputs, one step after another: two inputs, or, in int8, four of a group or their scales.
// kVectors registers; register v is at vector v of the panels.
template <PackedFormat kFormat, int kVectors>
struct WeightReader {
  static constexpr int kPanelVectors = static_cast<int>(kPanelOutputs) / kWidth;
  static constexpr int kStepBytes = kFormat == PackedFormat::kFloat ? 8 * kPanelOutputs : 4 * kPanelOutputs;
  static constexpr int kPanels = (kVectors + kPanelVectors - 1) / kPanelVectors;

  const std::byte* panel;  // where the first register's weights for the first input are
  int64_t panel_bytes;

  // Registers that begin within a panel end in it.
  static constexpr int64_t PanelOf(int v) { return v / kPanelVectors; }
  static constexpr int64_t PlaceOf(int v) { return v % kPanelVectors * kWidth; }

  // Those of a step, 32 bits for each output.
  inline const std::byte* At(int64_t step, int v) const {
    return panel + PanelOf(v) * panel_bytes + step * kStepBytes + 4 * PlaceOf(v);
  }

  // The weights of the input 2·pair + kOdd.
  template <int kOdd>
  inline __attribute__((always_inline)) void Read(int64_t pair, Register (&weights)[kVectors]) const {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (kFormat == PackedFormat::kFloat) {
        weights[v] = LoadRegister(reinterpret_cast<const float*>(At(pair, v)) + kOdd * kPanelOutputs);
      } else {
        RegisterBits both;
        __builtin_memcpy(&both, At(pair, v), sizeof both);
        weights[v] = Reinterpret<Register>(kOdd == 1 ? both & 0xffff0000U : both << 16);
      }
    }
  }
};

// Asks the memory, at each step, for kBytes of what the tile after this one reads; or, if kBytes is kAhead,
// for what this tile reads kBytesAhead later in each of its panels.
constexpr int kAhead = -1;
constexpr int64_t kBytesAhead = 1024;
template <int kBytes, class Weights>
inline __attribute__((always_inline)) void AskFor(const Weights& weights, const std::byte* next, int64_t step) {
  if constexpr (kBytes == kAhead) {
#pragma GCC unroll 8
    for (int panel = 0; panel < Weights::kPanels; ++panel) {
#pragma GCC unroll 8
      for (int i = 0; i < Weights::kStepBytes; i += 64) {
        __builtin_prefetch(weights.panel + panel * weights.panel_bytes + step * Weights::kStepBytes + kBytesAhead + i);
      }
    }
  } else {
#pragma GCC unroll 8
    for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(next + step * kBytes + i);
  }
}

template <int kRows, int kVectors>
struct Sums {
  Register of[kRows][kVectors] = {};

  // Adds the products of one input of all rows.
  inline __attribute__((always_inline)) void Add(const float* column, const Register (&w)[kVectors]) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Register same = column[r] - Register{};
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) of[r][v] += same * w[v];
    }
  }
};

template <PackedFormat kFormat, int kPrefetched, int kRows, int kVectors>
inline __attribute__((always_inline)) void AddAll(const float* x, const WeightReader<kFormat, kVectors>& weights,
                                                  int64_t inputs, const std::byte* next, Sums<kRows, kVectors>& sums) {
  // One input after the other: the registers of both at once would not leave enough for the sums.
  Register w[kVectors];
  const int64_t pairs = inputs / 2;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    AskFor<kPrefetched>(weights, next, pair);
    weights.template Read<0>(pair, w);
    sums.Add(x + 2 * pair * kRows, w);
    weights.template Read<1>(pair, w);
    sums.Add(x + (2 * pair + 1) * kRows, w);
  }
  if (inputs % 2 != 0) {
    weights.template Read<0>(pairs, w);
    sums.Add(x + 2 * pairs * kRows, w);
  }
}

#ifdef TDOCK_MULTIPLIES_PAIRS
// The same by an instruction that adds the products of two neighbouring inputs.
template <int kPrefetched, int kRows, int kVectors>
inline __attribute__((always_inline)) void AddAllPairs(const float* x,
                                                       const WeightReader<PackedFormat::kBFloat16, kVectors>& weights,
                                                       int64_t inputs, const std::byte* next,
                                                       Sums<kRows, kVectors>& sums) {
  const int64_t pairs = DividedUp(inputs, 2);
  // The compiler keeps the sums in registers only if they have one type and nothing takes their address.
  __m512 of[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) of[r][v] = static_cast<__m512>(sums.of[r][v]);
  }
  for (int64_t pair = 0; pair < pairs; ++pair) {
    AskFor<kPrefetched>(weights, next, pair);
    __m512bh w[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) __builtin_memcpy(&w[v], weights.At(pair, v), sizeof w[v]);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const auto same = Reinterpret<__m512bh>(x[pair * kRows + r] - Register{});
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) of[r][v] = _mm512_dpbf16_ps(of[r][v], same, w[v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sums.of[r][v] = static_cast<Register>(of[r][v]);
  }
}
#endif

// Adds to each sum the products of four weights with four inputs, all from -127 to 127. With kFoursWithOffset, the
// weights count as if 128 were added to them.
#ifdef TDOCK_MULTIPLIES_FOURS
constexpr bool kFoursWithOffset = true;
inline RegisterInts AddFours(RegisterInts sums, RegisterInts weights, RegisterInts inputs) {
  const RegisterBits with_offset = Reinterpret<RegisterBits>(weights) ^ 0x80808080U;
#if TDOCK_VECTOR_BITS == 512
  return Reinterpret<RegisterInts>(
      _mm512_dpbusd_epi32(Reinterpret<__m512i>(sums), Reinterpret<__m512i>(with_offset), Reinterpret<__m512i>(inputs)));
#else
  return Reinterpret<RegisterInts>(_mm256_dpbusd_avx_epi32(
      Reinterpret<__m256i>(sums), Reinterpret<__m256i>(with_offset), Reinterpret<__m256i>(inputs)));
#endif
}
#else
constexpr bool kFoursWithOffset = false;
typedef int16_t RegisterHalves __attribute__((vector_size(kWidth * 4)));
// The sums of the products of neighbours.
inline RegisterInts MultiplyHalves(RegisterHalves a, RegisterHalves b) {
#if TDOCK_VECTOR_BITS == 512
  return Reinterpret<RegisterInts>(_mm512_madd_epi16(Reinterpret<__m512i>(a), Reinterpret<__m512i>(b)));
#elif TDOCK_VECTOR_BITS == 256
  return Reinterpret<RegisterInts>(_mm256_madd_epi16(Reinterpret<__m256i>(a), Reinterpret<__m256i>(b)));
#elif defined(__SSE2__)
  return Reinterpret<RegisterInts>(_mm_madd_epi16(Reinterpret<__m128i>(a), Reinterpret<__m128i>(b)));
#else
  const auto x = Reinterpret<RegisterInts>(a), y = Reinterpret<RegisterInts>(b);
  return (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);
#endif
}
inline RegisterInts AddFours(RegisterInts sums, RegisterInts weights, RegisterInts inputs) {
  const auto w = Reinterpret<RegisterHalves>(weights), x = Reinterpret<RegisterHalves>(inputs);
  return sums + MultiplyHalves(w << 8 >> 8, x << 8 >> 8) + MultiplyHalves(w >> 8, x >> 8);
}
#endif

// Adds all products of rows in fours. Sums of a group are exact in integers; then they are scaled and added in float32.
template <int kPrefetched, int kRows, int kVectors>
inline __attribute__((always_inline)) void AddAllFours(const float* x,
                                                       const WeightReader<PackedFormat::kInt8, kVectors>& weights,
                                                       int64_t inputs, const std::byte* next,
                                                       Sums<kRows, kVectors>& sums) {
  const int64_t groups = DividedUp(inputs, kInt8Group);
  for (int64_t group = 0; group < groups; ++group, x += kWordsOfGroup * kRows) {
    const auto word = [&](int64_t i, int r) __attribute__((always_inline)) {
      return Reinterpret<int32_t>(x[i * kRows + r]);
    };
    const int64_t first_step = group * (kFoursOfGroup + 1), scale_step = first_step + kFoursOfGroup;
    RegisterInts of[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        of[r][v] = RegisterInts{} + (kFoursWithOffset ? word(kFoursOfGroup + 1, r) : 0);
      }
    }
    for (int64_t four = 0; four < kFoursOfGroup; ++four) {
      const int64_t step = first_step + four;
      AskFor<kPrefetched>(weights, next, step);
      RegisterInts w[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) __builtin_memcpy(&w[v], weights.At(step, v), sizeof w[v]);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const RegisterInts same = RegisterInts{} + word(four, r);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) of[r][v] = AddFours(of[r][v], w[v], same);
      }
    }
    AskFor<kPrefetched>(weights, next, scale_step);
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const Register scales = LoadRegister(reinterpret_cast<const float*>(weights.At(scale_step, v)));
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        sums.of[r][v] += __builtin_convertvector(of[r][v], Register) * (scales * x[kFoursOfGroup * kRows + r]);
      }
    }
  }
}

// The weights of a product, without the type of its outputs.
struct PanelWeights {
  const std::byte* panels;
  int64_t inputs;
};

// Puts the sums of a tile of kRows rows, with the kVectors registers of outputs from `output` on, into `to`:
// [kRows, kVectors * kWidth].
template <PackedFormat kFormat, RowWords kWords, int kPrefetched, int kRows, int kVectors>
void MultiplyTile(const PanelWeights& product, const float* x, int64_t output, const std::byte* next, float* to) {
  using Reader = WeightReader<kFormat, kVectors>;
  const int64_t panel = output / kPanelOutputs, place = output % kPanelOutputs;
  const int64_t panel_bytes = PanelBytes(kFormat, product.inputs);
  const std::byte* const begin = product.panels + panel * panel_bytes + place * 4;
  const Reader weights{begin, panel_bytes};
  Sums<kRows, kVectors> sums;
  if constexpr (kWords == RowWords::kFours) {
    AddAllFours<kPrefetched>(x, weights, product.inputs, next, sums);
#ifdef TDOCK_MULTIPLIES_PAIRS
  } else if constexpr (kWords == RowWords::kPairs) {
    AddAllPairs<kPrefetched>(x, weights, product.inputs, next, sums);
#endif
  } else {
    AddAll<kFormat, kPrefetched>(x, weights, product.inputs, next, sums);
  }
  __builtin_memcpy(to, sums.of, sizeof sums.of);
}

// Adds the bias to the sums [rows, width] of a tile, and puts them into the outputs from `output` on of its rows at
// `y`.
template <class T>
void StoreTile(const PanelProduct<T>& product, int64_t rows, int64_t width, int64_t output, const float* sums, T* y) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width && output + i < product.outputs; i += kLanes) {
      const int64_t count = std::min(product.outputs - output - i, kLanes);
      Lanes lanes = Load(sums + r * width + i);
      if (product.bias != nullptr) lanes += LoadPart(product.bias + output + i, 0, count);
      T* const to = y + r * product.y_stride + output + i;
      count == kLanes ? Store(lanes, to) : Store(lanes, to, count);
    }
  }
}

// Registers of outputs that a tile has at once. Tiles of few rows have more, so that sums do not wait for one another.
constexpr int kWideRows = 3;
constexpr int VectorsOf(int rows) {
  if (rows > kWideRows) return kNarrow;
  return rows == 1 || kWidth == kLanes ? 8 : 4;
}

// Puts the sums of tile `tile` of the rows, which has kRows of them, for the outputs from `output` on, into `sums`;
// returns for how many outputs.
template <PackedFormat kFormat, RowWords kWords, int kRows>
int64_t MultiplyRows(const PanelWeights& weights, const float* all_rows, const RowTiles& tiles, int64_t tile,
                     int64_t output, bool wide, float* sums) {
  using Reader = WeightReader<kFormat, kNarrow>;
  const float* const x = all_rows + tiles.begin(tile) * WordCount(kWords, weights.inputs);
  if constexpr (kRows <= kWideRows) {
    if (wide) {
      MultiplyTile<kFormat, kWords, kAhead, kRows, VectorsOf(kRows)>(weights, x, output, nullptr, sums);
      return VectorsOf(kRows) * kWidth;
    }
  }
  constexpr int64_t kOutputs = kNarrow * kWidth;
  if constexpr (kOutputs == kPanelOutputs) {
    // The first tiles ask for the next panel, unless both do not fit into a core's cache; then the first one asks for
    // what comes soon.
    constexpr int kAll = Reader::kStepBytes, kHalf = std::max(kAll / 2, 64);
    constexpr int64_t kLargePanel = int64_t{512} << 10, kSoon = 4096;
    const int64_t bytes = PanelBytes(kFormat, weights.inputs);
    const bool is_large = bytes > kLargePanel;
    const std::byte* const next = weights.panels + output / kPanelOutputs * bytes + (is_large ? kSoon : bytes);
    // Tiles of fewer rows are alone.
    constexpr bool kIsAlone = kRows < (kTileRows + 1) / 2;
    if (kIsAlone || tiles.count == 1 || (is_large && tile == 0)) {
      MultiplyTile<kFormat, kWords, kAll, kRows, kNarrow>(weights, x, output, next, sums);
    } else if constexpr (!kIsAlone) {
      if (!is_large && tile < kAll / kHalf) {
        MultiplyTile<kFormat, kWords, kHalf, kRows, kNarrow>(weights, x, output, next + tile * (bytes / kAll) * kHalf,
                                                             sums);
      } else {
        MultiplyTile<kFormat, kWords, 0, kRows, kNarrow>(weights, x, output, nullptr, sums);
      }
    }
  } else {
    MultiplyTile<kFormat, kWords, 0, kRows, kNarrow>(weights, x, output, nullptr, sums);
  }
  return kOutputs;
}

template <PackedFormat kFormat, RowWords kWords, class T>
void MultiplyPanels(const PanelProduct<T>& product) {
  const RowTiles tiles(product.rows, kTileRows);
  const int64_t padded = DividedUp(product.outputs, kPanelOutputs) * kPanelOutputs;
  using Function = int64_t (*)(const PanelWeights&, const float*, const RowTiles&, int64_t, int64_t, bool, float*);
  constexpr auto kFunctions = []<int... kRows>(std::integer_sequence<int, kRows...>) {
    return std::array<Function, sizeof...(kRows)>{MultiplyRows<kFormat, kWords, kRows + 1>...};
  }(std::make_integer_sequence<int, kTileRows>());
  const PanelWeights weights{product.panels, product.inputs};
  // A tile has many rows or many registers of outputs.
  alignas(64) float sums[std::max(kTileRows * kNarrow, kWideRows * VectorsOf(1)) * kWidth];
  for (int64_t output = 0; output < product.outputs;) {
    int64_t done = 0;
    // Tiles differ by a row at most, and have as many registers of outputs where there is more than one.
    const int64_t wide_outputs = VectorsOf(static_cast<int>(tiles.size(0))) * kWidth;
    const bool wide = tiles.count == 1 && tiles.size(0) <= kWideRows && padded - output >= wide_outputs;
    for (int64_t tile = 0; tile < tiles.count; ++tile) {
      const int64_t rows = tiles.size(tile);
      done = kFunctions[static_cast<size_t>(rows - 1)](weights, product.x, tiles, tile, output, wide, sums);
      StoreTile(product, rows, done, output, sums, product.y + tiles.begin(tile) * product.y_stride);
    }
    output += done;
  }
}

template <class T>
void MultiplyFloats(const PanelProduct<T>& product) {
  if (product.format == PackedFormat::kFloat) return MultiplyPanels<PackedFormat::kFloat, RowWords::kNumbers>(product);
#ifdef TDOCK_MULTIPLIES_PAIRS
  if (product.words == RowWords::kPairs) return MultiplyPanels<PackedFormat::kBFloat16, RowWords::kPairs>(product);
#endif
  MultiplyPanels<PackedFormat::kBFloat16, RowWords::kNumbers>(product);
}

template <class T>
void MultiplyInt8(const PanelProduct<T>& product) {
  MultiplyPanels<PackedFormat::kInt8, RowWords::kFours>(product);
}
