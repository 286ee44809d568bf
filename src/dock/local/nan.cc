#include "dock/local/nan.h"

#include <cmath>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"

namespace tdock::dock {
namespace {

// The first element for which `is_nan` holds. Whole blocks are checked without a branch, so that compilers use vector
// instructions.
template <class T, class IsNan>
std::optional<size_t> FindFirst(std::span<const std::byte> bytes, IsNan is_nan) {
  constexpr size_t kRun = 4096;
  const T* const values = reinterpret_cast<const T*>(bytes.data());
  const size_t size = bytes.size() / sizeof(T);
  for (size_t begin = 0; begin < size; begin += kRun) {
    const size_t end = std::min(size, begin + kRun);
    unsigned any = 0;
    for (size_t i = begin; i < end; ++i) any |= static_cast<unsigned>(is_nan(values[i]));
    for (size_t i = begin; any != 0 && i < end; ++i) {
      if (is_nan(values[i])) return i;
    }
  }
  return std::nullopt;
}

std::optional<size_t> FindNan(DType dtype, std::span<const std::byte> bytes) {
  const auto not_itself = [](auto value) { return value != value; };
  switch (dtype) {
    case DType::kF32:
      return FindFirst<float>(bytes, not_itself);
    case DType::kF64:
      return FindFirst<double>(bytes, not_itself);
    // All bits of the exponent are set, and some of the fraction.
    case DType::kF16:
      return FindFirst<uint16_t>(bytes, [](uint16_t bits) { return (bits & 0x7FFF) > 0x7C00; });
    case DType::kBF16:
      return FindFirst<uint16_t>(bytes, [](uint16_t bits) { return (bits & 0x7FFF) > 0x7F80; });
    case DType::kF8E5M2:
      return FindFirst<uint8_t>(bytes, [](uint8_t bits) { return (bits & 0x7F) > 0x7C; });
    // There is one NaN of each sign, and no infinity.
    case DType::kF8E4M3:
      return FindFirst<uint8_t>(bytes, [](uint8_t bits) { return (bits & 0x7F) == 0x7F; });
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
    case DType::kI16:
    case DType::kI32:
    case DType::kI64:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

absl::Status CheckNoNan(const Batch& batch) {
  for (const auto& [name, column] : batch.columns()) {
    const ColumnType& type = column.type();
    if (type.kind == ColumnKind::kBytes) continue;
    std::optional<size_t> place = FindNan(type.dtype, column.PayloadBytes());
    if (!place.has_value()) continue;
    for (int64_t row = 0; row < column.rows(); ++row) {
      const size_t elements = column.RowBytes(row).size() / SizeOf(type.dtype);
      if (*place < elements) {
        return absl::InvalidArgumentError(absl::StrCat("column '", EscapeForMessage(name), "', row ", row,
                                                       " of the batch: element ", *place,
                                                       " is NaN, which this partition does not accept"));
      }
      *place -= elements;
    }
  }
  return absl::OkStatus();
}

}  // namespace tdock::dock
