#include "kernels/attention_in_rows.h"

#include <ATen/ATen.h>

#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "kernels/typed_data.h"

namespace tdock::kernels {
namespace {

template <class T>
TokenRows<T> RowsOf(const at::Tensor& x) {
  return {.data = x.const_data_ptr<T>(), .token_stride = x.stride(0), .head_stride = x.stride(1)};
}

at::Tensor InLastDimension(const at::Tensor& x) { return x.stride(2) == 1 ? x : x.contiguous(); }

void CheckVisible(const SequencePart& part) {
  TORCH_CHECK(part.visible.is_cpu() && part.visible.scalar_type() == at::kBool && part.visible.is_contiguous() &&
                  part.visible.sizes() == at::IntArrayRef({part.count, part.positions}),
              "a mask of ", part.visible.scalar_type(), " ", part.visible.sizes(), " for ", part.count, " queries of ",
              part.positions, " positions");
  const bool* const visible = part.visible.const_data_ptr<bool>();
  for (int64_t i = 0; i < part.count; ++i) {
    TORCH_CHECK(std::memchr(visible + i * part.positions, 1, static_cast<size_t>(part.positions)) != nullptr, "token ",
                part.first_query + i, " attends to none, not even itself");
  }
}

}  // namespace

at::Tensor AttendInRows(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                        std::span<const SequencePart> parts, int64_t window) {
  CheckKernelTensor(queries, "attention");
  const auto fits = [&](const at::Tensor& x) {
    return x.dim() == 3 && x.is_cpu() && x.scalar_type() == queries.scalar_type() && x.size(2) == queries.size(2);
  };
  TORCH_CHECK(fits(queries) && fits(keys) && fits(values) && keys.sizes() == values.sizes() &&
                  queries.size(1) % keys.size(1) == 0,
              "keys of ", keys.scalar_type(), " ", keys.sizes(), " and values of ", values.scalar_type(), " ",
              values.sizes(), " do not fit queries of ", queries.scalar_type(), " ", queries.sizes());
  const AttentionShape shape = {queries.size(1), keys.size(1), queries.size(2)};
  std::vector<AttentionPart> paged;
  int64_t pages = 0;
  for (const SequencePart& part : parts) {
    if (part.visible.defined()) CheckVisible(part);
    paged.push_back({.begin = part.positions - part.count,
                     .count = part.count,
                     .first_query = part.first_query,
                     .first_fresh = part.first_key,
                     .visible = part.visible.defined() ? part.visible.const_data_ptr<bool>() : nullptr,
                     .visible_stride = part.positions});
    pages += (part.positions + kPageTokens - 1) / kPageTokens;
  }
  std::vector<int32_t> numbers(static_cast<size_t>(pages));
  std::iota(numbers.begin(), numbers.end(), 0);
  int64_t first_page = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    paged[i].pages = numbers.data() + first_page;
    first_page += (parts[i].positions + kPageTokens - 1) / kPageTokens;
  }
  const int64_t of_head = kPageTokens * shape.head_dim;
  const at::Tensor memory = at::empty({pages, 2, shape.kv_heads, of_head}, queries.options());
  at::Tensor output = at::empty(queries.sizes(), queries.options());
  const at::Tensor rows[] = {InLastDimension(queries), InLastDimension(keys), InLastDimension(values)};
  const PagedAttention attention(shape, window, std::move(paged));
  WithTypeOf(queries, [&](auto type) {
    using T = decltype(type);
    T* const data = memory.mutable_data_ptr<T>();
    attention.Run({data, data + shape.kv_heads * of_head, 2 * shape.kv_heads * of_head, of_head}, RowsOf<T>(rows[0]),
                  RowsOf<T>(rows[1]), RowsOf<T>(rows[2]), output.mutable_data_ptr<T>());
  });
  return output;
}

}  // namespace tdock::kernels
