// What a decoder reads in one pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

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
TokenBatch PaddedRows(const at::Tensor& tokens, const at::Tensor& present);

// The same tokens packed into one row, which costs nothing for padding. Rows without tokens are left out.
TokenBatch PackRows(const at::Tensor& tokens, const at::Tensor& present);

// What a pass over PackRows() gave for each token, [1, N, …], where it was: [B, T, …], zeros at padding.
at::Tensor UnpackRows(const at::Tensor& packed, const at::Tensor& present);

}  // namespace tdock::model
