// What a decoder reads in one pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tdock/column.h"

namespace tdock::model {

// Shapes: B rows, T tokens of a row.
struct TokenBatch {
  at::Tensor tokens;     // int64 [B, T]
  at::Tensor positions;  // int64 [B, T]: the place of each token in its own sequence, from 0
  // bool [B, 1, T, T], true where a token (row) sees another (column); every token sees at least itself. Undefined:
  // each token sees itself and those before it. Not used with a cache.
  at::Tensor visible = {};
  // Of a single row in which several sequences lie one behind the other and see nothing of each other: their lengths,
  // T in all. Neither with `visible` nor with a cache.
  std::vector<int64_t> lengths = {};
};

// Padded rows as they are, with padding on either side, or anywhere. tokens: int64 [B, T]; present: bool [B, T], false
// where there is padding, which nothing sees but itself. On any device.
TokenBatch PaddedBatch(const at::Tensor& tokens, const at::Tensor& present);

// Rows of int32 or int64 tokens, a sequence each, packed into one row (PackRows), which costs nothing for padding.
// Those without tokens are left out. InvalidArgument for a column that holds something else.
absl::StatusOr<TokenBatch> PackedBatch(const Column& rows, const at::Device& device);

// TokenBatch::visible for rows in which several sequences lie, some of which have several branches. Of the numbers of
// each token, int64 [B, T]: its sequence, and its branch, 0 for what comes before all branches. A token sees itself,
// and before it what is of its sequence, and of its own branch or before all.
at::Tensor VisibleWithin(const at::Tensor& sequences, const at::Tensor& branches);

}  // namespace tdock::model
