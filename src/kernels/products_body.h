// Included by loops_body.h. Products of packed rows with panels of weights (panels.h). Each output has one
// sum, to which its products are added in the order of the inputs, so that it is the same in tiles of every form.
//
// The instruction set defines kTileRows, the most rows of a tile, and kNarrow, how many registers of outputs a tile of
// that many rows has.

typedef float Register __attribute__((vector_size(kWidth * 4)));
typedef uint32_t RegisterBits __attribute__((vector_size(kWidth * 4)));
typedef int8_t SmallInts __attribute__((vector_size(kWidth)));

inline Register LoadRegister(const float* x) {
  Register loaded;
  __builtin_memcpy(&loaded, x, sizeof loaded);
  return loaded;
}

inline Register WidenInts(const std::byte* from) {
  SmallInts small;
  __builtin_memcpy(&small, from, sizeof small);
#if TDOCK_VECTOR_BITS == 512
  return Reinterpret<Register>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(Reinterpret<__m128i>(small))));
#elif TDOCK_VECTOR_BITS == 256
  return Reinterpret<Register>(
      _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(Reinterpret<long long>(small)))));
#else
  return __builtin_convertvector(small, Register);
#endif
}

// The weights of some outputs, one or two inputs at a time. kVectors registers; register v is at vector v of the
// panels.
template <PackedFormat kFormat, int kVectors>
struct WeightReader {
  static constexpr int kPanelVectors = static_cast<int>(kPanelOutputs) / kWidth;
  static constexpr int kPairBytes = kFormat == PackedFormat::kFloat      ? 8 * kPanelOutputs
                                    : kFormat == PackedFormat::kBFloat16 ? 4 * kPanelOutputs
                                                                         : 2 * kPanelOutputs;
  static constexpr int kPanels = (kVectors + kPanelVectors - 1) / kPanelVectors;
  // From one output to the next.
  static constexpr int kOutputBytes = kFormat == PackedFormat::kInt8 ? 1 : 4;

  const std::byte* panel;  // where the first register's weights for the first input are
  int64_t panel_bytes;
  const float* scales;
  int64_t panel_scales;

  // Registers that begin within a panel end in it.
  static constexpr int64_t PanelOf(int v) { return v / kPanelVectors; }
  static constexpr int64_t PlaceOf(int v) { return v % kPanelVectors * kWidth; }

  inline const std::byte* PairsAt(int64_t pair, int v) const {
    return panel + PanelOf(v) * panel_bytes + pair * kPairBytes + 4 * PlaceOf(v);
  }

  // The weights of the input 2·pair + kOdd.
  template <int kOdd>
  inline __attribute__((always_inline)) void Read(int64_t pair, Register (&weights)[kVectors]) const {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const std::byte* const at = panel + PanelOf(v) * panel_bytes + pair * kPairBytes;
      if constexpr (kFormat == PackedFormat::kFloat) {
        weights[v] = LoadRegister(reinterpret_cast<const float*>(at) + kOdd * kPanelOutputs + PlaceOf(v));
      } else if constexpr (kFormat == PackedFormat::kBFloat16) {
        RegisterBits both;
        __builtin_memcpy(&both, PairsAt(pair, v), sizeof both);
        weights[v] = Reinterpret<Register>(kOdd == 1 ? both & 0xffff0000U : both << 16);
      } else {
        const Register scale =
            LoadRegister(scales + PanelOf(v) * panel_scales + 2 * pair / kInt8Group * kPanelOutputs + PlaceOf(v));
        weights[v] = WidenInts(at + kOdd * kPanelOutputs + PlaceOf(v)) * scale;
      }
    }
  }
};

// Asks the memory, at each pair of inputs, for kBytes of what the tile after this one reads; or, if kBytes is kAhead,
// for what this tile reads kBytesAhead later in each of its panels.
constexpr int kAhead = -1;
constexpr int64_t kBytesAhead = 1024;
template <int kBytes, class Weights>
inline __attribute__((always_inline)) void AskFor(const Weights& weights, const std::byte* next, int64_t pair) {
  if constexpr (kBytes == kAhead) {
#pragma GCC unroll 8
    for (int panel = 0; panel < Weights::kPanels; ++panel) {
#pragma GCC unroll 8
      for (int i = 0; i < Weights::kPairBytes; i += 64) {
        __builtin_prefetch(weights.panel + panel * weights.panel_bytes + pair * Weights::kPairBytes + kBytesAhead + i);
      }
    }
  } else {
#pragma GCC unroll 8
    for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(next + pair * kBytes + i);
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
    for (int v = 0; v < kVectors; ++v) __builtin_memcpy(&w[v], weights.PairsAt(pair, v), sizeof w[v]);
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

// The weights of a product, without the type of its outputs.
struct PanelWeights {
  const std::byte* panels;
  const float* scales;
  int64_t inputs;
};

// Puts the sums of a tile of kRows rows, with the kVectors registers of outputs from `output` on, into `to`:
// [kRows, kVectors * kWidth].
template <PackedFormat kFormat, bool kPairs, int kPrefetched, int kRows, int kVectors>
void MultiplyTile(const PanelWeights& product, const float* x, int64_t output, const std::byte* next, float* to) {
  using Reader = WeightReader<kFormat, kVectors>;
  const int64_t panel = output / kPanelOutputs, place = output % kPanelOutputs;
  const int64_t panel_bytes = PanelBytes(kFormat, product.inputs);
  const int64_t panel_scales = PanelScales(kFormat, product.inputs);
  const std::byte* const begin = product.panels + panel * panel_bytes + place * Reader::kOutputBytes;
  const float* const scales = kFormat == PackedFormat::kInt8 ? product.scales + panel * panel_scales + place : nullptr;
  const Reader weights{begin, panel_bytes, scales, panel_scales};
  Sums<kRows, kVectors> sums;
#ifdef TDOCK_MULTIPLIES_PAIRS
  if constexpr (kPairs) {
    AddAllPairs<kPrefetched>(x, weights, product.inputs, next, sums);
  } else {
    AddAll<kFormat, kPrefetched>(x, weights, product.inputs, next, sums);
  }
#else
  AddAll<kFormat, kPrefetched>(x, weights, product.inputs, next, sums);
#endif
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
template <PackedFormat kFormat, bool kPairs, int kRows>
int64_t MultiplyRows(const PanelWeights& weights, const float* all_rows, const RowTiles& tiles, int64_t tile,
                     int64_t output, bool wide, float* sums) {
  using Reader = WeightReader<kFormat, kNarrow>;
  const float* const x = all_rows + tiles.begin(tile) * (kPairs ? DividedUp(weights.inputs, 2) : weights.inputs);
  if constexpr (kRows <= kWideRows) {
    if (wide) {
      MultiplyTile<kFormat, kPairs, kAhead, kRows, VectorsOf(kRows)>(weights, x, output, nullptr, sums);
      return VectorsOf(kRows) * kWidth;
    }
  }
  constexpr int64_t kOutputs = kNarrow * kWidth;
  if constexpr (kOutputs == kPanelOutputs) {
    // The first tiles ask for the next panel, unless both do not fit into a core's cache; then the first one asks for
    // what comes soon.
    constexpr int kAll = Reader::kPairBytes, kHalf = std::max(kAll / 2, 64);
    constexpr int64_t kLargePanel = int64_t{512} << 10, kSoon = 4096;
    const int64_t bytes = PanelBytes(kFormat, weights.inputs);
    const bool is_large = bytes > kLargePanel;
    const std::byte* const next = weights.panels + output / kPanelOutputs * bytes + (is_large ? kSoon : bytes);
    // Tiles of fewer rows are alone.
    constexpr bool kIsAlone = kRows < (kTileRows + 1) / 2;
    if (kIsAlone || tiles.count == 1 || (is_large && tile == 0)) {
      MultiplyTile<kFormat, kPairs, kAll, kRows, kNarrow>(weights, x, output, next, sums);
    } else if constexpr (!kIsAlone) {
      if (!is_large && tile < kAll / kHalf) {
        MultiplyTile<kFormat, kPairs, kHalf, kRows, kNarrow>(weights, x, output,
                                                             next + tile * (weights.inputs / 2) * kHalf, sums);
      } else {
        MultiplyTile<kFormat, kPairs, 0, kRows, kNarrow>(weights, x, output, nullptr, sums);
      }
    }
  } else {
    MultiplyTile<kFormat, kPairs, 0, kRows, kNarrow>(weights, x, output, nullptr, sums);
  }
  return kOutputs;
}

template <PackedFormat kFormat, bool kPairs, class T>
void MultiplyPanels(const PanelProduct<T>& product) {
  const RowTiles tiles(product.rows, kTileRows);
  const int64_t padded = DividedUp(product.outputs, kPanelOutputs) * kPanelOutputs;
  using Function = int64_t (*)(const PanelWeights&, const float*, const RowTiles&, int64_t, int64_t, bool, float*);
  constexpr auto kFunctions = []<int... kRows>(std::integer_sequence<int, kRows...>) {
    return std::array<Function, sizeof...(kRows)>{MultiplyRows<kFormat, kPairs, kRows + 1>...};
  }(std::make_integer_sequence<int, kTileRows>());
  const PanelWeights weights{product.panels, product.scales, product.inputs};
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
void MultiplyAll(const PanelProduct<T>& product) {
  switch (product.format) {
    case PackedFormat::kFloat:
      return MultiplyPanels<PackedFormat::kFloat, false>(product);
    case PackedFormat::kBFloat16:
#ifdef TDOCK_MULTIPLIES_PAIRS
      if (product.pairs) return MultiplyPanels<PackedFormat::kBFloat16, true>(product);
#endif
      return MultiplyPanels<PackedFormat::kBFloat16, false>(product);
    case PackedFormat::kInt8:
      return MultiplyPanels<PackedFormat::kInt8, false>(product);
  }
}
