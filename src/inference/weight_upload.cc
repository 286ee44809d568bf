// Shapes: R rows and C columns of a weight.
#include "inference/weight_upload.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "model/decoder/finite_numbers.h"
#include "model/files/safetensors.h"
#include "model/tensor_torch/convert.h"

namespace tdock::inference {
namespace {

constexpr size_t kShownWeights = 5;
constexpr size_t kShownNameBytes = 120;
constexpr size_t kBlockBytes = 1 << 20;  // that are copied at a time

Problem WrongTensors(const std::vector<std::string>& wrong) {
  std::string shown = absl::StrJoin(std::span(wrong).first(std::min(wrong.size(), kShownWeights)), "; ");
  if (wrong.size() > kShownWeights) absl::StrAppend(&shown, "; and ", wrong.size() - kShownWeights, " more");
  return {.message = absl::StrCat("'tensors' must be the weights of the model that is served, one for one: ", shown),
          .param = "tensors",
          .code = "invalid_value"};
}

at::Tensor RowsOf(const at::Tensor& weight) { return weight.dim() == 2 ? weight : weight.view({1, -1}); }

}  // namespace

std::optional<Problem> WeightUpload::Check(const std::vector<TensorAsk>& tensors, const model::Decoder& decoder) {
  std::map<absl::string_view, at::IntArrayRef> missing;
  const model::NamedTensors weights = decoder.NamedWeights();
  for (const auto& [name, weight] : weights) missing.emplace(name, weight.sizes());
  std::vector<std::string> wrong;
  for (const TensorAsk& tensor : tensors) {
    const auto found = missing.find(tensor.name);
    const std::string name = absl::StrCat("'", EscapeForMessage(tensor.name, kShownNameBytes), "'");
    if (found == missing.end()) {
      wrong.push_back(absl::StrCat(name, " is none of them, or is there twice"));
      continue;
    }
    if (found->second != at::IntArrayRef(tensor.shape)) {
      wrong.push_back(absl::StrCat(name, " has the shape [", absl::StrJoin(tensor.shape, ", "), "] and not [",
                                   absl::StrJoin(found->second, ", "), "]"));
    }
    missing.erase(found);
  }
  for (const auto& [name, sizes] : missing) wrong.push_back(absl::StrCat("'", name, "' is missing"));
  return wrong.empty() ? std::nullopt : std::optional(WrongTensors(wrong));
}

WeightUpload::WeightUpload(const std::vector<TensorAsk>& tensors, model::Decoder decoder)
    : decoder_(std::move(decoder)) {
  std::map<std::string, at::Tensor> weights;
  for (auto& [name, weight] : decoder_.NamedWeights()) weights.emplace(name, weight);
  for (const TensorAsk& tensor : tensors) {
    const at::ScalarType dtype = ToScalarType(tensor.dtype).value();
    targets_.push_back(
        {.name = tensor.name, .shape = tensor.shape, .rows = RowsOf(weights.at(tensor.name)), .dtype = dtype});
    total_ += static_cast<uint64_t>(targets_.back().rows.numel()) * c10::elementSize(dtype);
  }
  checksum_.Reset();
}

absl::Status WeightUpload::Add(uint64_t offset, absl::string_view bytes) {
  if (offset > received_) {
    return absl::FailedPreconditionError(
        absl::StrCat("the piece begins at byte ", offset, ", and the next one that is missing is ", received_));
  }
  if (offset > total_ || bytes.size() > total_ - offset) {
    return absl::OutOfRangeError(
        absl::StrCat("the piece has ", bytes.size(), " bytes from ", offset, " on, and all tensors together ", total_));
  }
  bytes.remove_prefix(std::min<uint64_t>(received_ - offset, bytes.size()));
  checksum_.Add(std::as_bytes(std::span(bytes.data(), bytes.size())));
  received_ += bytes.size();
  while (!bytes.empty()) {
    const Target& target = targets_[target_];
    if (written_ == target.rows.numel()) {
      ++target_;
      written_ = 0;
      continue;
    }
    const size_t size = c10::elementSize(target.dtype);
    const auto left = static_cast<size_t>(target.rows.numel() - written_) * size;
    size_t take = std::min({bytes.size() / size * size, left, kBlockBytes});
    if (divided_.empty() && take > 0) {
      TDOCK_RETURN_IF_ERROR(Write(bytes.substr(0, take)));
    } else {
      take = std::min(size - divided_.size(), bytes.size());
      divided_.append(bytes.data(), take);
      if (divided_.size() == size) TDOCK_RETURN_IF_ERROR(Write(std::exchange(divided_, {})));
    }
    bytes.remove_prefix(take);
  }
  return absl::OkStatus();
}

// Whole numbers of the target, which may begin and end inside of a row.
absl::Status WeightUpload::Write(absl::string_view numbers) {
  const at::NoGradGuard no_grad;
  const Target& target = targets_[target_];
  const int64_t columns = target.rows.size(1);
  const auto count = static_cast<int64_t>(numbers.size() / c10::elementSize(target.dtype));
  const at::Tensor values = at::empty({count}, target.dtype);  // aligned
  std::memcpy(values.mutable_data_ptr(), numbers.data(), numbers.size());
  const absl::Status finite =
      model::CheckFinite(values, {.shape = target.shape, .begin = written_}, target.rows.scalar_type());
  if (!finite.ok()) return Annotate(finite, absl::StrCat("the weight '", model::ShowName(target.name), "'"));
  for (int64_t done = 0; done < count;) {
    const int64_t row = written_ / columns, column = written_ % columns;
    const int64_t rows = column == 0 ? (count - done) / columns : 0;
    const int64_t taken = rows > 0 ? rows * columns : std::min(columns - column, count - done);
    if (rows > 0) {
      target.rows.narrow(0, row, rows).copy_(values.narrow(0, done, taken).view({rows, columns}));
    } else {
      target.rows.select(0, row).narrow(0, column, taken).copy_(values.narrow(0, done, taken));
    }
    done += taken;
    written_ += taken;
  }
  return absl::OkStatus();
}

}  // namespace tdock::inference
