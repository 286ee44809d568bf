// Included by loops_body.h. From rows of a matrix to the layouts of panels.h.

// Exchanges the upper right and the lower left corner of each square of 2·kDistance numbers.
template <int kDistance, int... kPlaces>
inline __attribute__((always_inline)) void ExchangeCorners(Lanes* x, std::integer_sequence<int, kPlaces...>) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kDistance) != 0) continue;
    const Lanes upper = x[i], lower = x[i + kDistance];
    x[i] = __builtin_shufflevector(upper, lower, ((kPlaces & kDistance) == 0 ? kPlaces : kPlaces + 16 - kDistance)...);
    x[i + kDistance] =
        __builtin_shufflevector(upper, lower, ((kPlaces & kDistance) == 0 ? kPlaces + kDistance : kPlaces + 16)...);
  }
}

// x[i] becomes column i of what x was, kLanes × kLanes numbers of 32 bits.
inline __attribute__((always_inline)) void TransposeLanes(Lanes* x) {
  constexpr auto kPlaces = std::make_integer_sequence<int, kLanes>();
  ExchangeCorners<8>(x, kPlaces);
  ExchangeCorners<4>(x, kPlaces);
  ExchangeCorners<2>(x, kPlaces);
  ExchangeCorners<1>(x, kPlaces);
}

// Calls put(i, lanes of the rows' numbers i) for each number i of `rows` ≤ kLanes rows of `size` numbers of 32 bits,
// which load(row, begin, count) gives; lanes of other rows are 0.
template <class LoadRow, class Put>
inline __attribute__((always_inline)) void PutColumns(int64_t rows, int64_t size, LoadRow&& load, Put&& put) {
  for (int64_t begin = 0; begin < size; begin += kLanes) {
    const int64_t count = std::min(size - begin, kLanes);
    Lanes square[kLanes] = {};
    for (int64_t r = 0; r < rows; ++r) square[r] = load(r, begin, count);
    TransposeLanes(square);
    for (int64_t i = 0; i < count; ++i) put(begin + i, square[i]);
  }
}

// Numbers begin … begin + count - 1 of a row, widened.
template <class T>
inline Lanes LoadPart(const T* row, int64_t begin, int64_t count) {
  return count == kLanes ? Load(row + begin) : Load(row + begin, count);
}

// Pairs of a row of `size` numbers of 16 bits.
inline Lanes LoadPairs(const BFloat16* row, int64_t size, int64_t begin, int64_t count) {
  Lanes pairs = {};
  __builtin_memcpy(&pairs, row + 2 * begin, static_cast<size_t>(2 * std::min(2 * count, size - 2 * begin)));
  return pairs;
}

// The same of numbers that are rounded before.
inline Lanes RoundedPairs(const float* row, int64_t size, int64_t begin, int64_t count) {
  const int64_t present = std::min(2 * count, size - 2 * begin);
  const auto load = [&](int64_t first) __attribute__((always_inline)) {
    return LoadPart(row, 2 * begin + first, std::clamp<int64_t>(present - first, 0, kLanes));
  };
  const Bits low = RoundedBits(load(0)), high = RoundedBits(load(kLanes));
  const Bits even = __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const Bits odd = __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return Reinterpret<Lanes>((even >> 16) | odd);
}

inline Lanes Magnitude(Lanes x) { return x < 0 ? -x : x; }

// The words of a group of a row's inputs, of which `count` ≤ kInt8Group are there (RowWords::kFours).
template <class T>
inline __attribute__((always_inline)) Lanes RoundedGroup(const T* row, int64_t begin, int64_t count) {
  static_assert(kInt8Group == 2 * kLanes);
  const Lanes low = LoadPart(row, begin, std::min(count, kLanes));
  const Lanes high = count > kLanes ? LoadPart(row, begin + kLanes, count - kLanes) : Lanes{};
  const float largest = Largest(Max(Magnitude(low), Magnitude(high)));
  // A number that is not finite makes the whole group so, as it would make what is computed with it.
  const float scale = largest / 127.0F + Sum(low * 0.0F + high * 0.0F);
  constexpr float kSmallest = 1e-30F;  // smaller scales have no finite inverse
  const float inverse = 127.0F / largest;
  const bool is_zero = !(scale > kSmallest && scale < std::numeric_limits<float>::infinity());
  constexpr float kRounds = 12582912.0F;  // 1.5·2²³: a number added to it is rounded to an integer
  const Ints offset = Reinterpret<Ints>(Same(kRounds));
  const auto steps = [&](Lanes x) __attribute__((always_inline)) {
    return is_zero ? Ints{} : Reinterpret<Ints>(x * inverse + kRounds) - offset;
  };
  const Ints of_low = steps(low), of_high = steps(high);
  typedef int8_t Bytes __attribute__((vector_size(kLanes)));
  const Bytes bytes[2] = {__builtin_convertvector(of_low, Bytes), __builtin_convertvector(of_high, Bytes)};
  const Lanes sums = __builtin_convertvector(of_low + of_high, Lanes);
  const auto correction = static_cast<int32_t>(-128.0F * Sum(sums));
  Lanes words = {};
  __builtin_memcpy(&words, bytes, sizeof bytes);
  words[kFoursOfGroup] = scale;
  words[kFoursOfGroup + 1] = Reinterpret<float>(correction);
  return words;
}

// Packs a tile of `rows` rows.
template <class T>
void PackTile(const T* x, int64_t rows, int64_t inputs, RowWords words, float* to) {
  const int64_t size = WordCount(words, inputs);
  const auto put = [&](int64_t i, const Lanes& column) __attribute__((always_inline)) {
    // Whole lanes, as long as what lies behind the column belongs to this tile and is written later.
    if (i * rows + kLanes <= size * rows) {
      Store(column, to + i * rows);
    } else {
      __builtin_memcpy(to + i * rows, &column, static_cast<size_t>(rows) * sizeof(float));
    }
  };
  if (words == RowWords::kFours) {
    for (int64_t group = 0; group * kInt8Group < inputs; ++group) {
      const int64_t begin = group * kInt8Group, count = std::min(inputs - begin, kInt8Group);
      Lanes square[kLanes] = {};
      for (int64_t r = 0; r < rows; ++r) square[r] = RoundedGroup(x + r * inputs, begin, count);
      TransposeLanes(square);
      for (int64_t i = 0; i < kWordsOfGroup; ++i) put(group * kWordsOfGroup + i, square[i]);
    }
    return;
  }
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (words == RowWords::kPairs) {
      return PutColumns(
          rows, size,
          [&](int64_t r, int64_t begin, int64_t count)
              __attribute__((always_inline)) { return LoadPairs(x + r * inputs, inputs, begin, count); },
          put);
    }
  }
  PutColumns(
      rows, size,
      [&](int64_t r, int64_t begin, int64_t count)
          __attribute__((always_inline)) { return LoadPart(x + r * inputs, begin, count); },
      put);
}

// One row of weights in int8, whose words are kPanelOutputs apart.
template <class T>
void RoundRow(const T* weight, int64_t inputs, float* to) {
  for (int64_t begin = 0; begin < inputs; begin += kInt8Group) {
    const Lanes words = RoundedGroup(weight, begin, std::min(inputs - begin, kInt8Group));
    for (int64_t i = 0; i <= kFoursOfGroup; ++i, to += kPanelOutputs) *to = words[i];
  }
}

// Packs `outputs` ≤ kPanelOutputs rows of weights, which lie one behind the other.
template <class T>
void PackPanel(const T* weight, int64_t outputs, int64_t inputs, PackedFormat format, std::byte* to) {
  auto* const numbers = reinterpret_cast<float*>(to);
  if (format == PackedFormat::kInt8) {
    std::memset(to, 0, static_cast<size_t>(PanelBytes(format, inputs)));
    for (int64_t o = 0; o < outputs; ++o) RoundRow(weight + o * inputs, inputs, numbers + o);
    return;
  }
  for (int64_t first = 0; first < kPanelOutputs; first += kLanes) {
    const int64_t rows = std::clamp<int64_t>(outputs - first, 0, kLanes);
    const T* const of_rows = weight + first * inputs;
    const auto put = [&](int64_t i, const Lanes& column) __attribute__((always_inline)) {
      Store(column, numbers + i * kPanelOutputs + first);
    };
    if (format == PackedFormat::kFloat) {
      PutColumns(
          rows, inputs,
          [&](int64_t r, int64_t begin, int64_t count)
              __attribute__((always_inline)) { return LoadPart(of_rows + r * inputs, begin, count); },
          put);
    } else {
      PutColumns(
          rows, DividedUp(inputs, 2),
          [&](int64_t r, int64_t begin, int64_t count) __attribute__((always_inline)) {
            if constexpr (std::is_same_v<T, BFloat16>) {
              return LoadPairs(of_rows + r * inputs, inputs, begin, count);
            } else {
              return RoundedPairs(of_rows + r * inputs, inputs, begin, count);
            }
          },
          put);
    }
  }
}
