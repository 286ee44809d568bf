// Converts Python's numbers to elements.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>

#include "absl/status/statusor.h"
#include "tdock/dtype.h"

namespace tdock::python {

// bool, int and float themselves: subclasses, such as numpy.float64, have element types of their own.
bool IsNumber(nanobind::handle object);

// The type of the numbers in a list without a schema: bool, int64, or float32 if one of them is a float.
// InvalidArgument for other objects and for a bool among numbers. Needs the GIL.
absl::StatusOr<DType> DTypeOfNumbers(PyObject* const* items, size_t count);

// Writes the numbers as elements of a type. InvalidArgument for a number that it cannot hold: one of another kind or
// out of range, or an int that would be rounded; floats are rounded, as is usual. Needs the GIL.
absl::Status WriteNumbers(PyObject* const* items, size_t count, DType dtype, std::byte* to);

}  // namespace tdock::python
