#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/loops.h"
#include "kernels/parallel.h"

namespace tdock::kernels {
namespace {

// So many rows are worked on before the next: what is prepared of keys and values serves all of them.
constexpr int64_t kRowsOfItem = 128;
// Less work than this is not divided among threads: products of numbers.
constexpr int64_t kLeastWork = 1 << 16;

// Stores keys (or values) of the positions begin … end - 1 of one kv head.
template <class T>
void StoreKeys(const T* from, int64_t stride, int64_t begin, int64_t end, const int32_t* table, int64_t page_stride,
               int64_t head_dim, T* keys) {
  while (begin < end) {
    const int64_t slot = begin % kPageTokens, count = std::min(end - begin, kPageTokens - slot);
    T* const to = keys + table[begin / kPageTokens] * page_stride + slot;
    for (int64_t d = 0; d < head_dim; ++d) {
      for (int64_t i = 0; i < count; ++i) to[d * kPageTokens + i] = from[i * stride + d];
    }
    from += count * stride;
    begin += count;
  }
}

template <class T>
void StoreValues(const T* from, int64_t stride, int64_t begin, int64_t end, const int32_t* table, int64_t page_stride,
                 int64_t head_dim, T* values) {
  for (int64_t position = begin; position < end; ++position, from += stride) {
    std::copy_n(from, head_dim,
                values + table[position / kPageTokens] * page_stride + position % kPageTokens * head_dim);
  }
}

// Memory of a thread that is kept for its next call.
float* Scratch(int64_t size) {
  thread_local std::vector<float> scratch;
  if (static_cast<int64_t>(scratch.size()) < size) scratch.resize(static_cast<size_t>(size));
  return scratch.data();
}

}  // namespace

PagedAttention::PagedAttention(const AttentionShape& shape, int64_t window, std::vector<AttentionPart> parts)
    : shape_(shape), window_(window), parts_(std::move(parts)), costs_({0}) {
  const int64_t group = shape.heads / shape.kv_heads;
  for (size_t p = 0; p < parts_.size(); ++p) {
    const AttentionPart& part = parts_[p];
    if (part.count == 0) continue;
    const int64_t rows = part.count * group, most = std::max(kRowsOfItem / group, int64_t{1}) * group;  // whole tokens
    const bool is_alone = rows <= most;
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
      Item item{static_cast<int32_t>(p), static_cast<int32_t>(head), 0, rows, is_alone};
      if (!is_alone) stored_first_.push_back(item);
      for (; item.begin_row < rows; item.begin_row += most) {
        item.end_row = std::min(item.begin_row + most, rows);
        const int64_t last = part.begin + (item.end_row - 1) / group;
        const int64_t seen = window > 0 ? std::min(last + 1, window + most / group) : last + 1;
        items_.push_back(item);
        costs_.push_back(costs_.back() + (item.end_row - item.begin_row) * (seen + 1) * 2 * shape.head_dim);
      }
    }
  }
}

template <class T>
void PagedAttention::RunTyped(const Pages<T>& pages, const TokenRows<T>& queries,
                              const std::array<TokenRows<T>, 2>& fresh, T* output, float* log_sums) const {
  const TypedLoops<T>& loops = LoopsInUse().of<T>();
  const int64_t group = shape_.heads / shape_.kv_heads, size = shape_.head_dim;
  const auto store = [&](const Item& item) {
    const AttentionPart& part = parts_[static_cast<size_t>(item.part)];
    const auto rows = [&](const TokenRows<T>& of) {
      return of.data + part.first_fresh * of.token_stride + item.kv_head * of.head_stride;
    };
    const int64_t end = part.begin + part.count, offset = item.kv_head * pages.head_stride;
    StoreKeys(rows(fresh[0]), fresh[0].token_stride, part.fresh_begin, end, part.pages, pages.page_stride, size,
              pages.keys + offset);
    StoreValues(rows(fresh[1]), fresh[1].token_stride, part.fresh_begin, end, part.pages, pages.page_stride, size,
                pages.values + offset);
  };
  const auto attend = [&](const Item& item) {
    const AttentionPart& part = parts_[static_cast<size_t>(item.part)];
    if (item.stores) store(item);
    const int64_t first_head = item.kv_head * group;
    AttentionRows<T> rows = {
        .keys = pages.keys + item.kv_head * pages.head_stride,
        .values = pages.values + item.kv_head * pages.head_stride,
        .page_stride = pages.page_stride,
        .pages = part.pages,
        .queries = queries.data + part.first_query * queries.token_stride + first_head * queries.head_stride,
        .token_stride = queries.token_stride,
        .head_stride = queries.head_stride,
        .output = output + (part.first_query * shape_.heads + first_head) * size,
        .log_sums = log_sums == nullptr ? nullptr : log_sums + part.first_query * shape_.heads + first_head,
        .heads = shape_.heads,
        .head_dim = size,
        .begin_row = item.begin_row,
        .end_row = item.end_row,
        .sight = {group, part.begin, window_, part.visible, part.visible_stride, part.begin + part.count},
        .scratch = nullptr,
    };
    rows.scratch = Scratch(AttentionScratch(rows));
    loops.attend(rows);
  };
  if (!stored_first_.empty()) {
    ParallelFor(static_cast<int64_t>(stored_first_.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) store(stored_first_[static_cast<size_t>(i)]);
    });
  }
  // What is divided is the work, not the items. An item is done by the thread that has its first piece.
  ParallelFor(costs_.back(), kLeastWork, [&](int64_t begin, int64_t end) {
    auto item = static_cast<size_t>(std::lower_bound(costs_.begin(), costs_.end(), begin) - costs_.begin());
    for (; item < items_.size() && costs_[item] < end; ++item) attend(items_[item]);
  });
}

void PagedAttention::Run(const Pages<float>& pages, const TokenRows<float>& queries, const TokenRows<float>& keys,
                         const TokenRows<float>& values, float* output, float* log_sums) const {
  RunTyped<float>(pages, queries, {keys, values}, output, log_sums);
}

void PagedAttention::Run(const Pages<c10::BFloat16>& pages, const TokenRows<c10::BFloat16>& queries,
                         const TokenRows<c10::BFloat16>& keys, const TokenRows<c10::BFloat16>& values,
                         c10::BFloat16* output, float* log_sums) const {
  RunTyped<c10::BFloat16>(pages, queries, {keys, values}, output, log_sums);
}

}  // namespace tdock::kernels
