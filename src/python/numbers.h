// Python's numbers as elements.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>

#include "absl/status/statusor.h"
#include "tdock/dtype.h"

namespace tdock::python {

// bool, int and float themselves: what is derived from them, as numpy.float64 is, has a type of its own.
bool IsNumber(nanobind::handle object);

// What the numbers in a list are without a schema: bool, int64, or float32 if one of them is a float. InvalidArgument
// for other things and for a bool among numbers. Needs the GIL.
absl::StatusOr<DType> DTypeOfNumbers(PyObject* const* items, size_t count);

// Writes the numbers as elements of a type. InvalidArgument for one that it cannot hold: of another kind or out of
// range, or an int that would be rounded; a float is rounded, as everywhere in the field. Needs the GIL.
absl::Status WriteNumbers(PyObject* const* items, size_t count, DType dtype, std::byte* to);

}  // namespace tdock::python
