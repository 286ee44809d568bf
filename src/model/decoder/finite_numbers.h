// Weights must be finite: one NaN is in every answer that it reaches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"

namespace tdock::model {

// Some numbers of a tensor: those from `begin` on, in row-major order.
struct NumbersOf {
  at::IntArrayRef shape;  // of the whole tensor
  int64_t begin = 0;
};

// InvalidArgument, "has nan at [3, 17]; …", names the first number that is NaN or infinite, or that `dtype` cannot
// hold.
absl::Status CheckFinite(const at::Tensor& numbers, const NumbersOf& of, at::ScalarType dtype);

}  // namespace tdock::model
