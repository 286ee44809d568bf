#include "python/numbers.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status.h"
#include "python/arguments.h"

namespace nb = nanobind;

namespace tdock::python {
namespace {

absl::Status DoesNotFit(PyObject* object, DType dtype) {
  return absl::InvalidArgumentError(absl::StrCat(Shown(object), " is no ", Name(dtype)));
}

template <class T>
absl::Status WriteInteger(PyObject* object, DType dtype, std::byte* to) {
  if (!PyLong_Check(object) || PyBool_Check(object)) return DoesNotFit(object, dtype);
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (overflow != 0 || value < std::numeric_limits<T>::min() || value > std::numeric_limits<T>::max()) {
    return DoesNotFit(object, dtype);
  }
  const T element = static_cast<T>(value);
  std::memcpy(to, &element, sizeof(element));
  return absl::OkStatus();
}

// Rounds to the nearest, ties to even.
uint16_t ToBfloat16(double value) {
  const auto narrow = static_cast<float>(value);
  if (std::isnan(narrow)) return 0x7fc0;
  const auto bits = std::bit_cast<uint32_t>(narrow);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

double FromBfloat16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// IEEE 754's binary16. Rounds to the nearest, ties to even; what is too large becomes infinite.
uint16_t ToFloat16(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | 0x7e00;
  const double size = std::abs(value);
  if (size >= 65520) return sign | 0x7c00;
  // The smallest normal number is 2^-14, and numbers below it are as far apart as those that follow it.
  const int exponent = size < 0x1p-14 ? -14 : std::ilogb(size);
  // Steps from 0, or from 1,024 for normal numbers. Where rounding reaches the next power of two, the exponent grows.
  const auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  return static_cast<uint16_t>(sign | (steps + (static_cast<uint32_t>(exponent + 14) << 10)));
}

double FromFloat16(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f, steps = bits & 0x3ff;
  double size = exponent == 0 ? std::ldexp(steps, -24) : std::ldexp(steps + 1024, exponent - 25);
  if (exponent == 0x1f) size = steps == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
  return (bits & 0x8000) != 0 ? -size : size;
}

// Writes it as the nearest element of the type, and returns that; what is too large is infinite.
double WriteNearest(double value, DType dtype, std::byte* to) {
  if (dtype == DType::kF64) {
    std::memcpy(to, &value, sizeof(value));
    return value;
  }
  if (dtype == DType::kF32) {
    const auto narrow = static_cast<float>(value);
    std::memcpy(to, &narrow, sizeof(narrow));
    return narrow;
  }
  if (dtype == DType::kBF16) {
    const uint16_t narrow = ToBfloat16(value);
    std::memcpy(to, &narrow, sizeof(narrow));
    return FromBfloat16(narrow);
  }
  const uint16_t narrow = ToFloat16(value);
  std::memcpy(to, &narrow, sizeof(narrow));
  return FromFloat16(narrow);
}

// Whether an int is this number.
bool IsExactly(PyObject* number, double value) {
  int overflow = 0;
  const long long small = PyLong_AsLongLongAndOverflow(number, &overflow);
  if (overflow == 0 && std::abs(value) < 0x1p63) return static_cast<long long>(value) == small;
  const nb::object same = nb::steal(PyLong_FromDouble(value));
  const int equal = same.is_valid() ? PyObject_RichCompareBool(number, same.ptr(), Py_EQ) : -1;
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

absl::Status WriteFloat(PyObject* object, DType dtype, std::byte* to) {
  const bool is_int = PyLong_Check(object) && !PyBool_Check(object);
  if (!is_int && !PyFloat_Check(object)) return DoesNotFit(object, dtype);
  const double value = PyFloat_AsDouble(object);
  if (value == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return DoesNotFit(object, dtype);
  }
  const double written = WriteNearest(value, dtype, to);
  if (std::isinf(written) && !std::isinf(value)) {
    return absl::InvalidArgumentError(absl::StrCat(Shown(object), " is too large for ", Name(dtype)));
  }
  // An int is meant exactly: a token, a step.
  if (is_int && !IsExactly(object, written)) {
    return absl::InvalidArgumentError(absl::StrCat(Shown(object), " would become ", absl::StrFormat("%.0f", written),
                                                   " as ", Name(dtype), "; give a float to have it rounded"));
  }
  return absl::OkStatus();
}

absl::Status WriteNumber(PyObject* object, DType dtype, std::byte* to) {
  switch (dtype) {
    case DType::kBool:
      if (!PyBool_Check(object)) return DoesNotFit(object, dtype);
      *to = std::byte{object == Py_True};
      return absl::OkStatus();
    case DType::kU8:
      return WriteInteger<uint8_t>(object, dtype, to);
    case DType::kI8:
      return WriteInteger<int8_t>(object, dtype, to);
    case DType::kI16:
      return WriteInteger<int16_t>(object, dtype, to);
    case DType::kI32:
      return WriteInteger<int32_t>(object, dtype, to);
    case DType::kI64:
      return WriteInteger<int64_t>(object, dtype, to);
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64:
      return WriteFloat(object, dtype, to);
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("Python numbers are not converted to ", Name(dtype), ": give a tensor"));
}

}  // namespace

bool IsNumber(nb::handle object) {
  return PyFloat_CheckExact(object.ptr()) || PyLong_CheckExact(object.ptr()) || PyBool_Check(object.ptr());
}

absl::StatusOr<DType> DTypeOfNumbers(PyObject* const* items, size_t count) {
  bool bools = false, ints = false, floats = false;
  for (size_t i = 0; i < count; ++i) {
    if (PyBool_Check(items[i])) {
      bools = true;
    } else if (PyLong_Check(items[i])) {
      ints = true;
    } else if (PyFloat_Check(items[i])) {
      floats = true;
    } else {
      return absl::InvalidArgumentError(absl::StrCat(Shown(items[i]), " is among the numbers"));
    }
  }
  if (bools && (ints || floats)) return absl::InvalidArgumentError("one list holds both bool and other numbers");
  if (bools) return DType::kBool;
  return floats ? DType::kF32 : DType::kI64;
}

absl::Status WriteNumbers(PyObject* const* items, size_t count, DType dtype, std::byte* to) {
  const size_t size = SizeOf(dtype);
  for (size_t i = 0; i < count; ++i) TDOCK_RETURN_IF_ERROR(WriteNumber(items[i], dtype, to + i * size));
  return absl::OkStatus();
}

}  // namespace tdock::python
