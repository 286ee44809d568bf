// Element types as Python names them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>
#include <string_view>

#include "tdock/column.h"

namespace tdock::python {

// Of the buffer protocol's format, such as "f" or "<q"; none for what the dock does not hold, bytes in another order
// included.
std::optional<DType> DTypeOfFormat(std::string_view format, size_t item_bytes);

// Of torch.dtype; none for what the dock does not hold. Needs the GIL.
std::optional<DType> DTypeOfTorch(nanobind::handle dtype);
// torch.float32, …. Imports torch. Needs the GIL.
nanobind::object TorchDType(DType dtype);

// The type of the same size by which NumPy can see the elements: itself, but for the floats that NumPy does not have.
DType AsNumpySeesIt(DType dtype);
nanobind::dlpack::dtype DlpackOf(DType dtype);

// What the API calls a column type: "float32", "str", …. InvalidArgument names those that there are.
absl::StatusOr<ColumnType> ParseColumnType(std::string_view text, bool ragged, const Shape& shape);
// "dense", "ragged", "str" or "bytes".
std::string_view KindName(const ColumnType& type);

}  // namespace tdock::python
