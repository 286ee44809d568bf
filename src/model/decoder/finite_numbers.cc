#include "model/decoder/finite_numbers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/tensor_torch/convert.h"

namespace tdock::model {
namespace {

std::string PlaceOf(int64_t index, at::IntArrayRef shape) {
  std::vector<int64_t> place(shape.size());
  for (size_t i = shape.size(); i-- > 0; index /= shape[i]) place[i] = index % shape[i];
  return absl::StrCat("[", absl::StrJoin(place, ", "), "]");
}

std::string ShowDType(at::ScalarType type) {
  const absl::StatusOr<DType> dtype = ToDType(type);
  return dtype.ok() ? std::string(Name(*dtype)) : at::toString(type);
}

bool Holds(at::ScalarType dtype, double number) {
  const auto single = static_cast<float>(number);
  switch (dtype) {
    case at::kHalf:
      return std::isfinite(static_cast<float>(at::Half(single)));
    case at::kBFloat16:
      return std::isfinite(static_cast<float>(at::BFloat16(single)));
    case at::kFloat:
      return std::isfinite(single);
    default:
      return std::isfinite(number);
  }
}

}  // namespace

absl::Status CheckFinite(const at::Tensor& numbers, const NumbersOf& of, at::ScalarType dtype) {
  if (!numbers.is_floating_point() || numbers.numel() == 0) return absl::OkStatus();
  // One pass over the numbers: where one of them is NaN, so are the least and the most.
  const auto [least, most] = at::aminmax(numbers);
  if (Holds(dtype, least.item<double>()) && Holds(dtype, most.item<double>())) return absl::OkStatus();
  const at::Tensor all = numbers.reshape({-1});
  const at::Tensor wrong = all.to(dtype).isfinite().logical_not().nonzero();
  if (wrong.numel() == 0) return absl::OkStatus();
  const auto first = wrong[0].item<int64_t>();
  const auto number = all[first].item<double>();
  const std::string where = PlaceOf(of.begin + first, of.shape);
  if (!std::isfinite(number)) {
    return absl::InvalidArgumentError(absl::StrCat("has ", number, " at ", where, "; weights must be finite"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("has ", number, " at ", where, ", which is beyond what ", ShowDType(dtype), " holds"));
}

}  // namespace tdock::model
