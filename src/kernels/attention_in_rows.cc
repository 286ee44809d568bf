#include "kernels/attention_in_rows.h"

#include <ATen/ATen.h>

#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "kernels/loops.h"
#include "kernels/parallel.h"
#include "kernels/typed_data.h"

namespace tdock::kernels {
namespace {

template <class T>
TokenRows<T> RowsOf(const at::Tensor& x) {
  return {.data = x.const_data_ptr<T>(), .token_stride = x.stride(0), .head_stride = x.stride(1)};
}

at::Tensor InLastDimension(const at::Tensor& x) { return x.stride(2) == 1 ? x : x.contiguous(); }

void CheckShapes(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values) {
  CheckKernelTensor(queries, "attention");
  const auto fits = [&](const at::Tensor& x) {
    return x.dim() == 3 && x.is_cpu() && x.scalar_type() == queries.scalar_type() && x.size(2) == queries.size(2);
  };
  TORCH_CHECK(fits(queries) && fits(keys) && fits(values) && keys.sizes() == values.sizes() &&
                  queries.size(1) % keys.size(1) == 0,
              "keys of ", keys.scalar_type(), " ", keys.sizes(), " and values of ", values.scalar_type(), " ",
              values.sizes(), " do not fit queries of ", queries.scalar_type(), " ", queries.sizes());
}

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

Attended AttendInRows(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                      std::span<const SequencePart> parts, int64_t window) {
  CheckShapes(queries, keys, values);
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
  Attended result = {at::empty(queries.sizes(), queries.options()),
                     at::empty({queries.size(0), shape.heads}, queries.options().dtype(at::kFloat))};
  const at::Tensor rows[] = {InLastDimension(queries), InLastDimension(keys), InLastDimension(values)};
  const PagedAttention attention(shape, window, std::move(paged));
  WithTypeOf(queries, [&](auto type) {
    using T = decltype(type);
    T* const data = memory.mutable_data_ptr<T>();
    attention.Run({data, data + shape.kv_heads * of_head, 2 * shape.kv_heads * of_head, of_head}, RowsOf<T>(rows[0]),
                  RowsOf<T>(rows[1]), RowsOf<T>(rows[2]), result.output.mutable_data_ptr<T>(),
                  result.log_sums.mutable_data_ptr<float>());
  });
  return result;
}

std::array<at::Tensor, 3> AttentionGradients(const at::Tensor& given_queries, const at::Tensor& given_keys,
                                             const at::Tensor& given_values, const Attended& attended,
                                             const at::Tensor& given_outgoing, std::span<const SequencePart> parts,
                                             int64_t window) {
  CheckShapes(given_queries, given_keys, given_values);
  const at::Tensor queries = InLastDimension(given_queries), keys = InLastDimension(given_keys),
                   values = InLastDimension(given_values), outgoing = InLastDimension(given_outgoing);
  TORCH_CHECK(outgoing.sizes() == queries.sizes() && outgoing.scalar_type() == queries.scalar_type(), "a gradient of ",
              outgoing.scalar_type(), " ", outgoing.sizes(), " does not fit queries of ", queries.scalar_type(), " ",
              queries.sizes());
  const std::array<at::Tensor, 3> gradients = {at::zeros(queries.sizes(), queries.options()),
                                               at::zeros(keys.sizes(), keys.options()),
                                               at::zeros(values.sizes(), values.options())};
  const int64_t heads = queries.size(1), kv_heads = keys.size(1), size = queries.size(2), group = heads / kv_heads;
  WithTypeOf(queries, [&](auto type) {
    using T = decltype(type);
    const auto add = [&](const SequencePart& part, int64_t kv_head) {
      const auto from = [](const at::Tensor& x, int64_t token, int64_t head) {
        return TokenRows<T>{x.const_data_ptr<T>() + token * x.stride(0) + head * x.stride(1), x.stride(0), x.stride(1)};
      };
      const auto to = [](const at::Tensor& x, int64_t token, int64_t head) {
        return x.mutable_data_ptr<T>() + token * x.stride(0) + head * x.stride(1);
      };
      const int64_t head = kv_head * group;
      AttentionGradientRows<T> rows = {
          .queries = from(queries, part.first_query, head),
          .output = from(attended.output, part.first_query, head),
          .outgoing = from(outgoing, part.first_query, head),
          .keys = from(keys, part.first_key, kv_head),
          .values = from(values, part.first_key, kv_head),
          .log_sums = attended.log_sums.const_data_ptr<float>() + part.first_query * heads + head,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = size,
          .sight = {group, part.positions - part.count, window,
                    part.visible.defined() ? part.visible.const_data_ptr<bool>() : nullptr, part.positions,
                    part.positions},
          .query_gradient = to(gradients[0], part.first_query, head),
          .key_gradient = to(gradients[1], part.first_key, kv_head),
          .value_gradient = to(gradients[2], part.first_key, kv_head),
          .scratch = nullptr,
      };
      std::vector<float> scratch(static_cast<size_t>(AttentionGradientScratch(rows)));
      rows.scratch = scratch.data();
      LoopsInUse().of<T>().attention_gradient(rows);
    };
    ParallelFor(static_cast<int64_t>(parts.size()) * kv_heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) add(parts[static_cast<size_t>(i / kv_heads)], i % kv_heads);
    });
  });
  return gradients;
}

}  // namespace tdock::kernels
