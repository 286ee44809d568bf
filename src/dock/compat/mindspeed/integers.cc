#include "dock/compat/mindspeed/integers.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"

namespace tdock::mindspeed {
namespace {

template <class T>
int64_t Read(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return static_cast<int64_t>(value);
}

using Reader = int64_t (*)(const std::byte*);

Reader ReaderOf(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
      return Read<uint8_t>;
    case DType::kI8:
      return Read<int8_t>;
    case DType::kI16:
      return Read<int16_t>;
    case DType::kI32:
      return Read<int32_t>;
    case DType::kI64:
      return Read<int64_t>;
    default:
      return nullptr;
  }
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> IntegersOf(absl::string_view name, const Column& column) {
  const ColumnType& type = column.type();
  const Reader read = type.kind == ColumnKind::kBytes ? nullptr : ReaderOf(type.dtype);
  std::vector<int64_t> integers;
  for (int64_t row = 0; row < column.rows(); ++row) {
    const std::span<const std::byte> bytes = column.RowBytes(row);
    if (read == nullptr || bytes.size() != SizeOf(type.dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("column '", EscapeForMessage(name),
                                                     "' must hold one integer in each row; it holds ", ToString(type)));
    }
    integers.push_back(read(bytes.data()));
  }
  return integers;
}

}  // namespace tdock::mindspeed
