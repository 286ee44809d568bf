// Python's names of element types.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>
#include <string_view>

#include "tdock/column.h"

namespace tdock::python {

// From a format of the buffer protocol, such as "f" or "<q"; none for what the dock does not support, including the
// other byte order.
std::optional<DType> DTypeOfFormat(std::string_view format, size_t item_bytes);

// From a torch.dtype; none for what the dock does not support. Needs the GIL.
std::optional<DType> DTypeOfTorch(nanobind::handle dtype);
// torch.float32, …. Imports torch. Needs the GIL.
nanobind::object TorchDType(DType dtype);

// The type of the same size as which NumPy can view the elements: itself, except for floats that NumPy lacks.
DType AsNumpySeesIt(DType dtype);
nanobind::dlpack::dtype DlpackOf(DType dtype);

// From the API's name of a column type: "float32", "str", …. InvalidArgument lists the valid names.
absl::StatusOr<ColumnType> ParseColumnType(std::string_view text, bool ragged, const Shape& shape);
// "dense", "ragged", "str" or "bytes".
std::string_view KindName(const ColumnType& type);

}  // namespace tdock::python
