#include "trainer/merge/first_difference.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
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

// Numbers that are compared at once: what comparing takes beside the weights does not grow with them.
constexpr int64_t kPiece = int64_t{1} << 16;

struct Found {
  int64_t count = 0, first = -1;  // how many numbers differ, and the index of the first
  double most = 0;                // by how much at most; NaN if one is not a number
};

Found Compare(const at::Tensor& one, const at::Tensor& other) {
  Found found;
  for (int64_t begin = 0; begin < one.numel(); begin += kPiece) {
    const int64_t size = std::min(kPiece, one.numel() - begin);
    const at::Tensor a = one.narrow(0, begin, size), b = other.narrow(0, begin, size);
    const at::Tensor differ = Bits(a).ne(Bits(b));
    const auto count = differ.sum().item<int64_t>();
    if (count == 0) continue;
    if (found.count == 0) found.first = begin + differ.to(at::kByte).argmax().item<int64_t>();
    found.count += count;
    if (!a.is_floating_point()) continue;
    const auto most = (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
    if (std::isnan(most) || most > found.most) found.most = most;  // NaN stays: it is not less than anything
  }
  return found;
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
      Annotate(source.read(index, read), absl::StrCat("weight '", model::ShowName(weight.name), "' of ", source.what)));
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
  const Found found = Compare(first.view({-1}), second.view({-1}));
  if (found.count == 0) return std::nullopt;
  std::string text =
      absl::StrCat("at ", PlaceOf(found.first, a.shape), " ", Text(first, found.first), ", and ",
                   Text(second, found.first), " (", found.count, " of ", first.numel(), " numbers differ");
  if (first.is_floating_point()) absl::StrAppend(&text, ", by ", absl::StrFormat("%.3g", found.most), " at most");
  return absl::StrCat(text, ")");
}

}  // namespace tdock::trainer
