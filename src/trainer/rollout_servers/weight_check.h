// Digests of the weights of a folder, and those that a server says of the weights that it has read from there.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "tdock/dtype.h"
#include "trainer/rollout_servers/wire/weight_calls.h"

namespace tdock::trainer {

// SHA-256, in lower-case hex, of numbers as those of another type, each rounded to the nearest.
absl::StatusOr<std::string> Sha256Of(const at::Tensor& weight, at::ScalarType type);

// SHA-256 of weights by their names.
using WeightDigests = std::map<std::string, std::string>;

// The digests of a folder's weights in the dtypes that servers compute in: of all weights, or, beyond a GiB, of the
// smallest ones. Thread-safe.
class FolderDigests {
 public:
  FolderDigests(Env& env, std::string folder) : env_(env), folder_(std::move(folder)) {}

  // Reads the folder at the first call for a dtype. The errors of model::WeightFiles.
  const absl::StatusOr<WeightDigests>& In(DType dtype);
  // kF32, kBF16 and kF16.
  static constexpr std::array kDTypes = {DType::kF32, DType::kBF16, DType::kF16};

 private:
  struct Entry {
    std::once_flag once = {};
    absl::StatusOr<WeightDigests> digests = WeightDigests();
  };

  Env& env_;
  const std::string folder_;
  std::array<Entry, kDTypes.size()> entries_;
};

// Comparisons with one start of a server. A server may hold weights in another form, such as packed, put together or
// divided: those that were equal when it had its first ones must be equal later on, and all may not stay the same while
// ours change. Not thread-safe.
class WeightCheck {
 public:
  // FailedPrecondition, with names, if the server has not the weights of the folder.
  absl::Status Compare(const Digests& said, FolderDigests& sent);

 private:
  // Dtypes that weights may be equal in: one, once some have been, and none if none were at the first call.
  std::vector<DType> dtypes_ = {FolderDigests::kDTypes.begin(), FolderDigests::kDTypes.end()};
  std::set<std::string> comparable_;  // names of weights that have been equal
  Digests said_;                      // at the last call
  WeightDigests sent_;                // in bfloat16, in which the fewest changes show
};

}  // namespace tdock::trainer
