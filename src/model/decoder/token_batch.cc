#include "model/decoder/token_batch.h"

#include <ATen/ATen.h>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "model/tensor_torch/convert.h"
#include "tdock/packing.h"

namespace tdock::model {

at::Tensor VisibleWithin(const at::Tensor& sequences, const at::Tensor& branches) {
  const int64_t width = sequences.size(1);
  const at::Tensor same_sequence = sequences.unsqueeze(2) == sequences.unsqueeze(1);
  const at::Tensor seen = branches.unsqueeze(1);
  const at::Tensor in_history = (seen == 0) | (seen == branches.unsqueeze(2));
  const at::Tensor not_later = at::ones({width, width}, same_sequence.options()).tril();
  return (same_sequence & in_history & not_later).unsqueeze(1);
}

TokenBatch PaddedBatch(const at::Tensor& tokens, const at::Tensor& present) {
  TORCH_CHECK(present.scalar_type() == at::kBool && tokens.dim() == 2 && present.sizes() == tokens.sizes(),
              "a mask of padded rows is bool and has the shape of the tokens, ", tokens.sizes(), ", not ",
              present.scalar_type(), " ", present.sizes());
  const at::Tensor positions = present.cumsum(1) - 1;
  // Each place of padding is a sequence of its own, which sees itself, because a softmax over nothing is not a number.
  const at::Tensor sequences = at::where(present, 0, -1 - at::arange(tokens.size(1), positions.options()));
  return {.tokens = tokens,
          .positions = positions.clamp_min(0),
          .visible = VisibleWithin(sequences, at::zeros_like(positions))};
}

absl::StatusOr<TokenBatch> PackedBatch(const Column& rows, const at::Device& device) {
  const ColumnType& type = rows.type();
  if (type != ColumnType::Ragged(DType::kI64) && type != ColumnType::Ragged(DType::kI32)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows of tokens are ragged int32[*] or int64[*], not ", ToString(type)));
  }
  TDOCK_ASSIGN_OR_RETURN(const PackedRows packed, PackRows(rows));
  TDOCK_ASSIGN_OR_RETURN(const at::Tensor tokens, ValuesOf(packed.values));
  TDOCK_ASSIGN_OR_RETURN(const auto lengths, packed.lengths.Values<int32_t>());
  TokenBatch batch;
  std::vector<int64_t> positions;
  for (const int64_t length : lengths) {
    if (length > 0) batch.lengths.push_back(length);
    for (int64_t position = 0; position < length; ++position) positions.push_back(position);
  }
  batch.tokens = tokens.to(device, at::kLong).unsqueeze(0);
  batch.positions = at::tensor(positions, at::kLong).unsqueeze(0).to(device);
  return batch;
}

}  // namespace tdock::model
