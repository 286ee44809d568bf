// The parts of a tensor that several ranks have saved, and how they are put together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock::trainer {

// Some of the numbers of a tensor, flat.
struct TensorPart {
  std::string name = {};  // as it is saved
  int64_t begin = 0;
  int64_t size = 0;

  int64_t end() const { return begin + size; }
};

// "TENSOR[BEGIN/TOTAL]".
std::string PartName(absl::string_view tensor, int64_t begin, int64_t total);

// The part of `tensor`, which has `total` numbers, that is saved under `name` with `size` numbers, not negative.
// InvalidArgument names it where it is none of PartName(), or of another tensor's numbers.
absl::StatusOr<TensorPart> ParsePart(absl::string_view name, absl::string_view tensor, int64_t total, int64_t size);

// Numbers of a part, and where they go.
struct PartCopy {
  size_t part = 0;           // its place among those that were given
  int64_t from = 0, to = 0;  // the first number in the part, and in the target
  int64_t size = 0;
};

// Where the numbers [begin, begin + size) of `tensor` come from, each once, ascending. They are some of its `total`,
// and so are the parts, in any order. InvalidArgument names the numbers that no part has, and parts that overlap, of
// which none can be trusted.
absl::StatusOr<std::vector<PartCopy>> PlanCopies(absl::string_view tensor, std::span<const TensorPart> parts,
                                                 int64_t begin, int64_t size, int64_t total);

}  // namespace tdock::trainer
