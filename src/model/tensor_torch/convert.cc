#include "model/tensor_torch/convert.h"

#include <ATen/ATen.h>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock {
namespace {

struct Pair {
  DType ours;
  at::ScalarType theirs;
};
constexpr Pair kPairs[] = {
    {DType::kBool, at::kBool},
    {DType::kU8, at::kByte},
    {DType::kI8, at::kChar},
    {DType::kI16, at::kShort},
    {DType::kI32, at::kInt},
    {DType::kI64, at::kLong},
    {DType::kF16, at::kHalf},
    {DType::kBF16, at::kBFloat16},
    {DType::kF32, at::kFloat},
    {DType::kF64, at::kDouble},
    {DType::kF8E4M3, at::kFloat8_e4m3fn},
    {DType::kF8E5M2, at::kFloat8_e5m2},
};

// The bytes of a contiguous host tensor, kept alive by it.
Buffer Share(const at::Tensor& host) {
  return Buffer::Wrap(host.const_data_ptr(), host.nbytes(), std::make_shared<at::Tensor>(host));
}

Shape RowShape(const at::Tensor& tensor) {
  return Shape(std::span(tensor.sizes().data(), tensor.sizes().size()).subspan(1));
}

}  // namespace

absl::StatusOr<at::ScalarType> ToScalarType(DType dtype) {
  for (const Pair& pair : kPairs) {
    if (pair.ours == dtype) return pair.theirs;
  }
  return absl::InvalidArgumentError(absl::StrCat("libtorch has no dtype ", Name(dtype)));
}

absl::StatusOr<DType> ToDType(at::ScalarType dtype) {
  for (const Pair& pair : kPairs) {
    if (pair.theirs == dtype) return pair.ours;
  }
  return absl::InvalidArgumentError(absl::StrCat("columns have no dtype ", c10::toString(dtype)));
}

absl::StatusOr<at::Tensor> ValuesOf(const Column& column) {
  if (column.type().kind == ColumnKind::kBytes) {
    return absl::InvalidArgumentError("a bytes column has no elements to make a tensor of");
  }
  TDOCK_ASSIGN_OR_RETURN(const at::ScalarType dtype, ToScalarType(column.type().dtype));
  const bool ragged = column.type().kind == ColumnKind::kRagged;
  std::vector<int64_t> shape = {ragged ? column.offsets().back() - column.offsets().front() : column.rows()};
  shape.insert(shape.end(), column.type().row_shape.begin(), column.type().row_shape.end());
  return at::from_blob(
      const_cast<std::byte*>(column.PayloadBytes().data()), shape, [owner = column.values().owner()](void*) {},
      at::TensorOptions().dtype(dtype));
}

absl::StatusOr<Column> RaggedColumn(const at::Tensor& items, std::span<const int64_t> lengths) {
  if (items.dim() < 1) return absl::InvalidArgumentError("a column needs a tensor with a dimension of items");
  TDOCK_ASSIGN_OR_RETURN(const DType dtype, ToDType(items.scalar_type()));
  Buffer offsets = Buffer::Allocate((lengths.size() + 1) * sizeof(int64_t));
  int64_t* offset = reinterpret_cast<int64_t*>(offsets.mutable_data());
  *offset = 0;
  for (int64_t length : lengths) {
    offset[1] = offset[0] + length;
    ++offset;
  }
  if (*offset != items.size(0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the rows have ", *offset, " items together, the tensor has ", items.size(0)));
  }
  const at::Tensor host = items.detach().to(at::kCPU).contiguous();
  return Column::MakeRagged(dtype, RowShape(host), Share(host), std::move(offsets));
}

}  // namespace tdock
