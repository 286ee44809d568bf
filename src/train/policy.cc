#include "train/policy.h"

#include <ATen/ATen.h>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tensor_torch/convert.h"

namespace tdock::train {

absl::StatusOr<std::vector<Sequence>> SequencesOf(const Rows& rows) {
  std::vector<Sequence> samples(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    TDOCK_ASSIGN_OR_RETURN(samples[i].prompt, rows.Get<int32_t>(i, "prompt"));
    TDOCK_ASSIGN_OR_RETURN(samples[i].response, rows.Get<int32_t>(i, "responses"));
  }
  return samples;
}

absl::StatusOr<at::Tensor> TokenColumn(const Rows& rows, absl::string_view name, std::span<const Sequence> samples) {
  TDOCK_ASSIGN_OR_RETURN(const Column column, rows.ToColumn(name));
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto length = column.Length(static_cast<int64_t>(i));
    if (length == static_cast<int64_t>(samples[i].response.size())) continue;
    return absl::InvalidArgumentError(absl::StrCat("column '", name, "' of row ", rows.ids()[i], " has ", length,
                                                   " values for a response of ", samples[i].response.size(), " tokens"));
  }
  TDOCK_ASSIGN_OR_RETURN(const at::Tensor values, ValuesOf(column));
  return values.to(at::kFloat);
}

int64_t ResponseTokens(std::span<const Sequence> samples) {
  size_t tokens = 0;
  for (const Sequence& sample : samples) tokens += sample.response.size();
  return static_cast<int64_t>(tokens);
}

}  // namespace tdock::train
