// The input of one pass of a decoder.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "tdock/column.h"

namespace tdock::model {

// Shapes: B rows, T tokens of a row.
struct TokenBatch {
  at::Tensor tokens;     // int64 [B, T]
  at::Tensor positions;  // int64 [B, T]: the position of each token in its own sequence, from 0
  // bool [B, 1, T, T], true if a token (row) attends to another (column); every token attends at least to itself.
  // Undefined: each token attends to itself and all before it. Not used with a cache.
  at::Tensor visible = {};
  // For a single row of several concatenated parts that do not attend to each other: their lengths, T in total. Neither
  // with `visible` nor with a cache.
  std::vector<int64_t> lengths = {};
  // For each of these parts, which of its tokens attend to which, as `visible`: bool [1, 1, length, length], or
  // undefined. Empty: undefined for all.
  std::vector<at::Tensor> visible_in_parts = {};
  // Of a training pass: what is dropped follows from it (Decoder::SetDropout, LoraConfig::dropout) and from the shapes.
  // Absent: nothing is dropped. Not with a cache.
  std::optional<uint64_t> dropout_seed = std::nullopt;
  // With dynamic rope scaling, the length of sequences whose frequencies are used, unless Decoder::FixRopeLength() says
  // so; 0: the longest of the batch as far as it is in the batch.
  int64_t rope_length = 0;
};

// Padded rows as they are, with padding on either side, or anywhere. tokens: int64 [B, T]; present: bool [B, T], false
// for padding, which only attends to itself. On any device.
TokenBatch PaddedBatch(const at::Tensor& tokens, const at::Tensor& present);

// Rows of int32 or int64 tokens, a sequence each, packed into one row (PackRows), which costs nothing for padding.
// Those without tokens are left out. InvalidArgument for a column that holds something else.
absl::StatusOr<TokenBatch> PackedBatch(const Column& rows, const at::Device& device);

// TokenBatch::visible for rows that hold several sequences, some with several branches. For each token, int64 [B, T]:
// the number of its sequence, and of its branch, 0 before all branches. A token attends to itself and to the earlier
// tokens of its sequence that are in its own branch or before all branches.
at::Tensor VisibleWithin(const at::Tensor& sequences, const at::Tensor& branches);

}  // namespace tdock::model
