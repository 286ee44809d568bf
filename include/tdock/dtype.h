// Element types and shapes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock {

// The values are part of the frame and wire formats.
enum class DType : uint8_t {
  kBool = 0,
  kU8 = 1,
  kI8 = 2,
  kI16 = 3,
  kI32 = 4,
  kI64 = 5,
  kF16 = 6,
  kBF16 = 7,
  kF32 = 8,
  kF64 = 9,
  kF8E4M3 = 10,
  kF8E5M2 = 11,
};

constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return 1;
    case DType::kI16:
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kI32:
    case DType::kF32:
      return 4;
    case DType::kI64:
    case DType::kF64:
      return 8;
  }
  return 0;
}

// PyTorch's names: "bool", "uint8", "int64", "bfloat16", "float32", "float8_e4m3fn", ….
absl::string_view Name(DType dtype);
absl::StatusOr<DType> ParseDType(absl::string_view name);

// The DType of a C++ type. The 8- and 16-bit floats have no C++ type here: read and write them as bytes.
template <class T>
constexpr bool kHasDType = false;
template <class T>
constexpr DType kDTypeOf = DType::kU8;

#define TDOCK_DTYPE_OF(type, value)             \
  template <>                                   \
  inline constexpr bool kHasDType<type> = true; \
  template <>                                   \
  inline constexpr DType kDTypeOf<type> = DType::value
TDOCK_DTYPE_OF(bool, kBool);
TDOCK_DTYPE_OF(uint8_t, kU8);
TDOCK_DTYPE_OF(int8_t, kI8);
TDOCK_DTYPE_OF(int16_t, kI16);
TDOCK_DTYPE_OF(int32_t, kI32);
TDOCK_DTYPE_OF(int64_t, kI64);
TDOCK_DTYPE_OF(float, kF32);
TDOCK_DTYPE_OF(double, kF64);
#undef TDOCK_DTYPE_OF

template <class T>
concept Element = kHasDType<T>;

// Sizes of the dimensions, outermost first. A scalar has none. A shape with more than kMaxRank keeps only the first
// ones, and every function that makes something with it refuses it.
class Shape {
 public:
  static constexpr size_t kMaxRank = 8;

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<int64_t> sizes) : Shape(std::span(sizes.begin(), sizes.size())) {}
  constexpr explicit Shape(std::span<const int64_t> sizes) : rank_(std::min(sizes.size(), kMaxRank + 1)) {
    std::copy_n(sizes.begin(), size(), sizes_.begin());
  }

  constexpr size_t size() const { return std::min(rank_, kMaxRank); }
  constexpr bool empty() const { return rank_ == 0; }
  constexpr int64_t operator[](size_t i) const { return sizes_[i]; }
  constexpr const int64_t* begin() const { return sizes_.data(); }
  constexpr const int64_t* end() const { return sizes_.data() + size(); }
  constexpr bool too_long() const { return rank_ > kMaxRank; }

  friend constexpr bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<int64_t, kMaxRank> sizes_{};
  size_t rank_ = 0;
};

// The product of the sizes: 1 for a scalar. InvalidArgument for a negative size, too many sizes, or a product above
// 2^62.
absl::StatusOr<int64_t> NumElements(const Shape& shape);

// "[2,3]".
std::string ToString(const Shape& shape);

}  // namespace tdock
