// The memory of arrays and tensors.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>

#include "absl/status/statusor.h"
#include "python/object_refs.h"
#include "tdock/dtype.h"

namespace tdock::python {

struct Array {
  DType dtype = DType::kU8;
  // The sizes of all dimensions. C order, without gaps.
  Shape shape = {};
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

// Both need the GIL.

bool IsTensor(nanobind::handle object);
// Whether LookAtArray supports the object.
bool IsArray(nanobind::handle object);

// A NumPy array or scalar, a torch tensor, or anything else with the buffer protocol, DLPack or __array__. Data that is
// not contiguous, or is on a device, is copied by its library. `refs` keeps the memory alive. InvalidArgument for an
// element type that the dock does not support. May throw nb::python_error.
absl::StatusOr<Array> LookAtArray(nanobind::handle object, ObjectRefs& refs);

}  // namespace tdock::python
