#include "model/decoder/token_batch.h"

#include <ATen/ATen.h>

namespace tdock::model {

namespace {

void CheckMask(const at::Tensor& tokens, const at::Tensor& present) {
  TORCH_CHECK(present.scalar_type() == at::kBool && tokens.dim() == 2 && present.sizes() == tokens.sizes(),
              "a mask of padded rows is bool and has the shape of the tokens, ", tokens.sizes(), ", not ",
              present.scalar_type(), " ", present.sizes());
}

}  // namespace

TokenBatch PaddedRows(const at::Tensor& tokens, const at::Tensor& present) {
  CheckMask(tokens, present);
  const int64_t width = tokens.size(1);
  const auto options = present.options();
  // Padding sees itself, because a softmax over nothing is not a number.
  const at::Tensor itself = at::eye(width, options);
  const at::Tensor before = at::ones({width, width}, options).tril();
  const at::Tensor both = present.unsqueeze(2).logical_and(present.unsqueeze(1));
  return {.tokens = tokens,
          .positions = (present.cumsum(1) - 1).clamp_min(0),
          .visible = both.logical_and(before).logical_or(itself).unsqueeze(1)};
}

TokenBatch PackRows(const at::Tensor& tokens, const at::Tensor& present) {
  CheckMask(tokens, present);
  TokenBatch packed;
  packed.tokens = tokens.masked_select(present).unsqueeze(0);
  packed.positions = (present.cumsum(1) - 1).masked_select(present).unsqueeze(0);
  const at::Tensor lengths = present.sum(1).to(at::kCPU);
  for (int64_t row = 0; row < lengths.numel(); ++row) {
    const int64_t length = lengths.const_data_ptr<int64_t>()[row];
    if (length > 0) packed.lengths.push_back(length);
  }
  return packed;
}

at::Tensor UnpackRows(const at::Tensor& packed, const at::Tensor& present) {
  const at::Tensor where = present.reshape({-1}).nonzero().squeeze(1);
  std::vector<int64_t> shape = packed.sizes().vec();
  shape.erase(shape.begin());
  TORCH_CHECK(shape[0] == where.numel(), "there are ", shape[0], " packed tokens for a mask of ", where.numel());
  shape[0] = present.numel();
  const at::Tensor flat = at::zeros(shape, packed.options()).index_copy(0, where, packed[0]);
  return flat.unflatten(0, present.sizes());
}

}  // namespace tdock::model
