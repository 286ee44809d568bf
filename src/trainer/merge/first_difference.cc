#include "trainer/merge/first_difference.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "model/tensor_torch/convert.h"

namespace tdock::trainer {
namespace {

// As integers of the same size: NaN is itself, and zeros have signs.
at::Tensor Bits(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 1:
      return tensor.view(at::kByte);
    case 2:
      return tensor.view(at::kShort);
    case 4:
      return tensor.view(at::kInt);
    default:
      return tensor.view(at::kLong);
  }
}

std::string PlaceOf(int64_t flat, const std::vector<int64_t>& shape) {
  std::vector<int64_t> place(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    place[d] = flat % shape[d];
    flat /= shape[d];
  }
  return absl::StrCat("[", absl::StrJoin(place, ", "), "]");
}

std::string Text(const at::Tensor& tensor, int64_t flat) {
  const at::Tensor number = tensor.view({-1})[flat];
  if (!tensor.is_floating_point()) return absl::StrCat(number.to(at::kLong).item<int64_t>());
  return absl::StrFormat("%.9g", number.to(at::kDouble).item<double>());
}

std::string ShapeText(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

}  // namespace

DType ConvertedTo(DType stored, std::optional<DType> dtype) {
  const bool floating =
      stored == DType::kF64 || stored == DType::kF32 || stored == DType::kF16 || stored == DType::kBF16;
  return floating ? dtype.value_or(stored) : stored;
}

absl::StatusOr<at::Tensor> ReadWeight(const WeightSource& source, size_t index, std::optional<DType> dtype) {
  const model::NamedInfo& weight = source.weights[index];
  TDOCK_ASSIGN_OR_RETURN(const at::ScalarType type, ToScalarType(ConvertedTo(weight.info.dtype, dtype)));
  at::Tensor read = at::empty(weight.info.shape, at::TensorOptions().dtype(type));
  TDOCK_RETURN_IF_ERROR(
      Annotate(source.read(index, read), absl::StrCat("weight '", weight.name, "' of ", source.what)));
  return read;
}

absl::StatusOr<std::optional<std::string>> FirstDifference(const WeightSource& one, size_t in_one,
                                                           const WeightSource& other, size_t in_other,
                                                           std::optional<DType> dtype) {
  const model::TensorInfo &a = one.weights[in_one].info, &b = other.weights[in_other].info;
  if (a.shape != b.shape) return absl::StrCat("shape ", ShapeText(a.shape), ", and ", ShapeText(b.shape));
  const DType type = ConvertedTo(a.dtype, dtype);
  if (type != ConvertedTo(b.dtype, dtype)) return absl::StrCat("dtype ", Name(a.dtype), ", and ", Name(b.dtype));
  TDOCK_ASSIGN_OR_RETURN(const at::Tensor first, ReadWeight(one, in_one, dtype));
  TDOCK_ASSIGN_OR_RETURN(const at::Tensor second, ReadWeight(other, in_other, dtype));
  if (first.numel() == 0) return std::nullopt;
  const at::Tensor differ = Bits(first.view({-1})).ne(Bits(second.view({-1})));
  const auto count = differ.sum().item<int64_t>();
  if (count == 0) return std::nullopt;
  const auto at = differ.to(at::kByte).argmax().item<int64_t>();
  std::string text = absl::StrCat("at ", PlaceOf(at, a.shape), " ", Text(first, at), ", and ", Text(second, at), " (",
                                  count, " of ", first.numel(), " numbers differ");
  if (first.is_floating_point()) {
    const auto most = (first.to(at::kDouble) - second.to(at::kDouble)).abs().max().item<double>();
    absl::StrAppend(&text, ", by ", absl::StrFormat("%.3g", most), " at most");
  }
  return absl::StrCat(text, ")");
}

}  // namespace tdock::trainer
