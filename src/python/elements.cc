#include "python/elements.h"

#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace nb = nanobind;

namespace tdock::python {
namespace {

std::optional<DType> IntegerOf(bool is_signed, size_t item_bytes) {
  if (!is_signed) return item_bytes == 1 ? std::optional(DType::kU8) : std::nullopt;
  switch (item_bytes) {
    case 1:
      return DType::kI8;
    case 2:
      return DType::kI16;
    case 4:
      return DType::kI32;
    case 8:
      return DType::kI64;
    default:
      return std::nullopt;
  }
}

constexpr std::array kAll = {DType::kBool, DType::kU8,   DType::kI8,  DType::kI16, DType::kI32,    DType::kI64,
                             DType::kF16,  DType::kBF16, DType::kF32, DType::kF64, DType::kF8E4M3, DType::kF8E5M2};

}  // namespace

std::optional<DType> DTypeOfFormat(std::string_view format, size_t item_bytes) {
  if (!format.empty() && (format.front() == '<' || format.front() == '=' || format.front() == '@')) {
    format.remove_prefix(1);
  }
  if (format.size() != 1) return std::nullopt;
  switch (format.front()) {
    case '?':
      return DType::kBool;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
      return IntegerOf(true, item_bytes);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
      return IntegerOf(false, item_bytes);
    case 'e':
      return DType::kF16;
    case 'f':
      return DType::kF32;
    case 'd':
      return DType::kF64;
    default:
      return std::nullopt;
  }
}

std::optional<DType> DTypeOfTorch(nb::handle dtype) {
  // torch.dtype objects are unique and live as long as torch does. Cached by address, because a list of tensors looks
  // each of them up.
  struct Known {
    PyObject* object;
    DType dtype;
  };
  static std::array<Known, kAll.size()>* const known = [] {
    auto* const all = new std::array<Known, kAll.size()>();
    for (size_t i = 0; i < kAll.size(); ++i) (*all)[i] = {TorchDType(kAll[i]).release().ptr(), kAll[i]};
    return all;
  }();
  for (const Known& one : *known) {
    if (one.object == dtype.ptr()) return one.dtype;
  }
  return std::nullopt;
}

nb::object TorchDType(DType dtype) { return nb::module_::import_("torch").attr(std::string(Name(dtype)).c_str()); }

DType AsNumpySeesIt(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return DType::kI16;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return DType::kU8;
    default:
      return dtype;
  }
}

nb::dlpack::dtype DlpackOf(DType dtype) {
  const auto make = [&](nb::dlpack::dtype_code code) {
    return nb::dlpack::dtype{static_cast<uint8_t>(code), static_cast<uint8_t>(8 * SizeOf(dtype)), 1};
  };
  switch (dtype) {
    case DType::kBool:
      return make(nb::dlpack::dtype_code::Bool);
    case DType::kU8:
      return make(nb::dlpack::dtype_code::UInt);
    case DType::kI8:
    case DType::kI16:
    case DType::kI32:
    case DType::kI64:
      return make(nb::dlpack::dtype_code::Int);
    case DType::kBF16:
      return make(nb::dlpack::dtype_code::Bfloat);
    case DType::kF16:
    case DType::kF32:
    case DType::kF64:
      return make(nb::dlpack::dtype_code::Float);
    case DType::kF8E4M3:
      return make(nb::dlpack::dtype_code::Float8_E4M3FN);
    case DType::kF8E5M2:
      return make(nb::dlpack::dtype_code::Float8_E5M2);
  }
  return make(nb::dlpack::dtype_code::UInt);
}

absl::StatusOr<ColumnType> ParseColumnType(std::string_view text, bool ragged, const Shape& shape) {
  const absl::string_view name(text.data(), text.size());
  if (name == "str" || name == "bytes") {
    if (ragged || !shape.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a column of '", name, "' is neither ragged nor has a shape: its rows have any length"));
    }
    return name == "str" ? ColumnType::Text() : ColumnType::Bytes();
  }
  absl::StatusOr<DType> dtype = ParseDType(name);
  if (!dtype.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(dtype.status().message(), "; beside these there are 'str' and 'bytes'"));
  }
  return ragged ? ColumnType::Ragged(*dtype, shape) : ColumnType::Dense(*dtype, shape);
}

std::string_view KindName(const ColumnType& type) {
  switch (type.kind) {
    case ColumnKind::kDense:
      return "dense";
    case ColumnKind::kRagged:
      return "ragged";
    case ColumnKind::kBytes:
      return type == ColumnType::Text() ? "str" : "bytes";
  }
  return "unknown";
}

}  // namespace tdock::python
