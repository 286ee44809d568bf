#include "tdock/dtype.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/utf8.h"

namespace tdock {
namespace {

constexpr std::pair<DType, absl::string_view> kNames[] = {
    {DType::kBool, "bool"},
    {DType::kU8, "uint8"},
    {DType::kI8, "int8"},
    {DType::kI16, "int16"},
    {DType::kI32, "int32"},
    {DType::kI64, "int64"},
    {DType::kF16, "float16"},
    {DType::kBF16, "bfloat16"},
    {DType::kF32, "float32"},
    {DType::kF64, "float64"},
    {DType::kF8E4M3, "float8_e4m3fn"},
    {DType::kF8E5M2, "float8_e5m2"},
};

}  // namespace

absl::string_view Name(DType dtype) {
  for (const auto& [value, name] : kNames) {
    if (value == dtype) return name;
  }
  return "unknown";
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (const auto& [value, known] : kNames) {
    if (known == name) return value;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no dtype '", EscapeForMessage(name), "'; there are ",
      absl::StrJoin(kNames, ", ", [](std::string* out, const auto& entry) { absl::StrAppend(out, entry.second); })));
}

absl::StatusOr<int64_t> NumElements(const Shape& shape) {
  constexpr int64_t kLimit = int64_t{1} << 62;
  if (shape.too_long()) {
    return absl::InvalidArgumentError(absl::StrCat("a shape has at most ", Shape::kMaxRank, " dimensions"));
  }
  int64_t count = 1;
  for (int64_t size : shape) {
    if (size < 0) return absl::InvalidArgumentError(absl::StrCat("shape ", ToString(shape), " has a negative size"));
    if (size == 0) return 0;
    if (__builtin_mul_overflow(count, size, &count) || count > kLimit) {
      return absl::InvalidArgumentError(absl::StrCat("shape ", ToString(shape), " has too many elements"));
    }
  }
  return count;
}

std::string ToString(const Shape& shape) { return absl::StrCat("[", absl::StrJoin(shape, ","), "]"); }

}  // namespace tdock
