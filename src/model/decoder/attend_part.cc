#include "model/decoder/attend_part.h"

#include <ATen/ATen.h>

#include <optional>

namespace tdock::model {

at::Tensor AttendPart(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values, int64_t begin,
                      int64_t window) {
  const int64_t count = queries.size(0), length = begin + count;
  // [1, heads, tokens, D]
  const auto heads_first = [&](const at::Tensor& x) {
    const at::Tensor wide = x.is_cpu() && c10::isReducedFloatingType(x.scalar_type()) ? x.to(at::kFloat) : x;
    return wide.transpose(0, 1).unsqueeze(0);
  };
  std::optional<at::Tensor> visible;
  const bool windowed = window > 0 && length > window;
  const bool causal = count > 1;
  if (windowed || (causal && begin > 0)) {
    visible = at::ones({count, length}, queries.options().dtype(at::kBool)).tril(begin);
    if (windowed) visible = visible->triu(begin + 1 - window);
  }
  return at::scaled_dot_product_attention(heads_first(queries), heads_first(keys), heads_first(values), visible,
                                          /*dropout_p=*/0.0, /*is_causal=*/causal && !visible.has_value(),
                                          /*scale=*/std::nullopt,
                                          /*enable_gqa=*/queries.size(1) != keys.size(1))
      .squeeze(0)
      .transpose(0, 1)
      .to(queries.scalar_type());
}

}  // namespace tdock::model
