// Conversions between the dock's columns and libtorch's tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "absl/status/statusor.h"
#include "tdock/column.h"

namespace tdock {

absl::StatusOr<at::ScalarType> ToScalarType(DType dtype);
// InvalidArgument for a dtype that columns do not support.
absl::StatusOr<DType> ToDType(at::ScalarType dtype);

// The values of a column as a host tensor that shares its memory, which must not be written to: [rows, row shape…] for
// a dense column; the concatenated rows, [items, row shape…], for a ragged one. InvalidArgument for a bytes column.
absl::StatusOr<at::Tensor> ValuesOf(const Column& column);

// A ragged column: row i is the next lengths[i] items of a tensor [items, row shape…]. InvalidArgument if the lengths
// do not add up to the items.
absl::StatusOr<Column> RaggedColumn(const at::Tensor& items, std::span<const int64_t> lengths);

}  // namespace tdock
