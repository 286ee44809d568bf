// Where two weights differ.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "tdock/dtype.h"
#include "trainer/merge/weight_source.h"

namespace tdock::trainer {

// Nothing if two weights have the same numbers to the bit, as they are stored, or once they are converted to `dtype`.
// Otherwise a text: which dtypes or shapes, or the first number that differs with both of its values, how many do, and
// by how much at most. Both weights are in memory meanwhile, and no more than pieces beside them.
absl::StatusOr<std::optional<std::string>> FirstDifference(const WeightSource& one, size_t in_one,
                                                           const WeightSource& other, size_t in_other,
                                                           std::optional<DType> dtype);

// What a weight is converted to: weights that are no floating-point numbers stay as they are.
DType ConvertedTo(DType stored, std::optional<DType> dtype);

// Reads a weight, converted.
absl::StatusOr<at::Tensor> ReadWeight(const WeightSource& source, size_t index, std::optional<DType> dtype);

}  // namespace tdock::trainer
