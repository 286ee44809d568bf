// Shapes: P pages, T tokens of the pass, N of one part, B parts, S positions, H heads, K heads of keys and values, D
// head size.
#include "engine/cache/paged_cache.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

#include "kernels/attention.h"
#include "model/decoder/attend_part.h"

namespace tdock::engine {
namespace {

constexpr int64_t kPageTokens = PagedCache::kPageTokens;

// Memory of the CPU comes from the system as it is touched, in large pages where there are any: a rollout touches much
// of it, and gives it back.
at::Tensor Zeros(const std::vector<int64_t>& shape, const at::TensorOptions& options) {
  if (!options.device().is_cpu()) return at::zeros(shape, options);
  size_t bytes = options.dtype().itemsize();
  for (const int64_t size : shape) bytes *= static_cast<size_t>(size);
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  return at::from_blob(
      memory, shape, [bytes](void* held) { ::munmap(held, bytes); }, options);
}

bool HasKernel(const at::TensorOptions& options) {
  const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
  return options.device().is_cpu() && (dtype == at::kFloat || dtype == at::kBFloat16);
}

}  // namespace

// One pass over the pages of its parts.
class PagedCache::Pass final : public model::CachePass {
 public:
  Pass(const PagedCache& cache, std::vector<model::CachedPart> parts)
      : cache_(cache), parts_(std::move(parts)), has_kernel_(HasKernel(cache.pages_.options())) {
    for (const model::CachedPart& part : parts_) {
      first_tokens_.push_back(tokens_);
      tokens_ += part.count;
      const std::span<const int32_t> of_part = cache.table_.pages(part.sequence);
      TORCH_CHECK(part.begin >= 0 && part.begin + part.count <= static_cast<int64_t>(of_part.size()) * kPageTokens,
                  "tokens ", part.begin, " to ", part.begin + part.count, " of a sequence with ", of_part.size(),
                  " pages of ", kPageTokens);
      const auto used = static_cast<std::ptrdiff_t>((part.begin + part.count + kPageTokens - 1) / kPageTokens);
      if (has_kernel_) page_numbers_.insert(page_numbers_.end(), of_part.begin(), of_part.begin() + used);
    }
    if (!has_kernel_) FindPlaces();
  }

  at::Tensor Attend(size_t layer, const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                    int64_t window) override {
    TORCH_CHECK(queries.size(0) == tokens_, "a pass of ", queries.size(0), " tokens over parts of ", tokens_);
    const auto index = static_cast<int64_t>(layer);
    if (!has_kernel_) return AttendByCopies(index, queries, keys, values, window);
    return cache_.pages_.scalar_type() == at::kFloat
               ? AttendInPlace<float>(index, queries, keys, values, window)
               : AttendInPlace<at::BFloat16>(index, queries, keys, values, window);
  }

 private:
  // ---- On the CPU.

  template <class T>
  at::Tensor AttendInPlace(int64_t layer, const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                           int64_t window) {
    const at::Tensor& pages = cache_.pages_;
    const auto rows = [&](const at::Tensor& x) {
      TORCH_CHECK(x.stride(2) == 1 && x.scalar_type() == pages.scalar_type(), "queries, keys and values of ",
                  x.scalar_type(), " for a cache of ", pages.scalar_type());
      return kernels::TokenRows<T>{x.const_data_ptr<T>(), x.stride(0), x.stride(1)};
    };
    T* const of_layer = pages.mutable_data_ptr<T>() + layer * pages.stride(1);
    at::Tensor result = at::empty(queries.sizes(), queries.options());
    AttentionWithin(window, queries.size(1))
        .Run({of_layer, of_layer + pages.stride(2), pages.stride(0), pages.stride(3)}, rows(queries), rows(keys),
             rows(values), result.mutable_data_ptr<T>());
    return result;
  }

  // Layers with the same window share it.
  const kernels::PagedAttention& AttentionWithin(int64_t window, int64_t heads) {
    for (const auto& [other, attention] : attentions_) {
      if (other == window) return *attention;
    }
    std::vector<kernels::AttentionPart> parts;
    const int32_t* pages = page_numbers_.data();
    for (size_t p = 0; p < parts_.size(); ++p) {
      const int64_t begin = parts_[p].begin, end = begin + parts_[p].count;
      parts.push_back({.pages = pages,
                       .begin = begin,
                       .count = end - begin,
                       .first_query = first_tokens_[p],
                       .fresh_begin = begin,
                       .first_fresh = first_tokens_[p]});
      pages += (end + kPageTokens - 1) / kPageTokens;
    }
    const kernels::AttentionShape shape = {heads, cache_.pages_.size(3), cache_.pages_.size(5)};
    attentions_.emplace_back(window, std::make_unique<kernels::PagedAttention>(shape, window, std::move(parts)));
    return *attentions_.back().second;
  }

  // ---- With copies of what a part sees.

  // Keys (0) or values (1) of the first `length` positions of a sequence, [S, K, D].
  at::Tensor Gather(int64_t layer, int64_t which, int64_t sequence, int64_t length) const {
    const std::span<const int32_t> pages =
        cache_.table_.pages(sequence).first(static_cast<size_t>((length + kPageTokens - 1) / kPageTokens));
    const at::Tensor index =
        at::tensor(at::ArrayRef<int32_t>(pages.data(), pages.size()), at::kInt).to(cache_.pages_.device());
    return cache_.pages_.select(1, layer)
        .select(1, which)
        .index_select(0, index)  // [pages, K, page tokens, D]
        .transpose(1, 2)
        .flatten(0, 1)
        .narrow(0, 0, length);
  }

  at::Tensor AttendToCopy(int64_t layer, const model::CachedPart& part, const at::Tensor& queries,
                          const at::Tensor& keys, const at::Tensor& values, int64_t window) const {
    if (part.begin == 0) return model::AttendPart(queries, keys, values, 0, window);
    const int64_t length = part.begin + part.count;
    return model::AttendPart(queries, Gather(layer, 0, part.sequence, length), Gather(layer, 1, part.sequence, length),
                             part.begin, window);
  }

  // Where tokens are, on the device; and parts of one token, which are worked on together.
  void FindPlaces() {
    std::vector<int64_t> pages, slots;
    for (const model::CachedPart& part : parts_) {
      const std::span<const int32_t> of_part = cache_.table_.pages(part.sequence);
      for (int64_t position = part.begin; position < part.begin + part.count; ++position) {
        pages.push_back(of_part[static_cast<size_t>(position / kPageTokens)]);
        slots.push_back(position % kPageTokens);
      }
    }
    page_T_ = at::tensor(pages, at::kLong).to(cache_.pages_.device());
    slot_T_ = at::tensor(slots, at::kLong).to(cache_.pages_.device());
    std::vector<int64_t> positions;
    std::vector<std::span<const int32_t>> tables;
    size_t longest = 0;
    for (size_t p = 0; p < parts_.size(); ++p) {
      if (parts_[p].count != 1) continue;
      singles_.push_back(first_tokens_[p]);
      positions.push_back(parts_[p].begin);
      tables.push_back(
          cache_.table_.pages(parts_[p].sequence).first(static_cast<size_t>(parts_[p].begin / kPageTokens) + 1));
      longest = std::max(longest, tables.back().size());
    }
    if (singles_.empty()) return;
    at::Tensor table = at::zeros({static_cast<int64_t>(tables.size()), static_cast<int64_t>(longest)}, at::kLong);
    for (size_t b = 0; b < tables.size(); ++b) {
      std::fill_n(table.mutable_data_ptr<int64_t>() + b * longest, longest, tables[b].front());
      std::copy(tables[b].begin(), tables[b].end(), table.mutable_data_ptr<int64_t>() + b * longest);
    }
    const at::Device device = cache_.pages_.device();
    single_T_ = at::tensor(singles_, at::kLong).to(device);
    positions_B_ = at::tensor(positions, at::kLong).to(device);
    table_BP_ = table.to(device);
  }

  at::Tensor AttendSingles(int64_t layer, const at::Tensor& queries_THD, int64_t window) const {
    const at::Tensor pages = cache_.pages_.select(1, layer).index_select(0, table_BP_.flatten());
    const int64_t rows = table_BP_.size(0), slots = table_BP_.size(1) * kPageTokens;
    const at::Tensor positions = positions_B_.unsqueeze(1), all = at::arange(slots, positions.options());
    at::Tensor visible = all <= positions;
    if (window > 0) visible = visible & (all > positions - window);
    const at::Tensor hidden = visible.logical_not().unsqueeze(1).unsqueeze(3);
    // What a place had before may not be finite, and 0 times that is not a number.
    const auto heads_first = [&](int64_t which) {  // [B, K, S, D]
      const at::Tensor chosen = pages.select(1, which);
      return chosen.view({rows, -1, chosen.size(1), kPageTokens, chosen.size(3)})
          .transpose(1, 2)
          .reshape({rows, chosen.size(1), slots, chosen.size(3)})
          .masked_fill(hidden, 0);
    };
    return at::scaled_dot_product_attention(queries_THD.index_select(0, single_T_).unsqueeze(2), heads_first(0),
                                            heads_first(1), visible.unsqueeze(1).unsqueeze(1), /*dropout_p=*/0.0,
                                            /*is_causal=*/false, /*scale=*/std::nullopt,
                                            /*enable_gqa=*/queries_THD.size(1) != cache_.pages_.size(3))
        .squeeze(2);
  }

  at::Tensor AttendByCopies(int64_t layer, const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                            int64_t window) const {
    const at::Tensor of_layer = cache_.pages_.select(1, layer);
    for (const int64_t which : {0, 1}) {
      of_layer.select(1, which).index_put_({page_T_, at::indexing::Slice(), slot_T_}, which == 0 ? keys : values);
    }
    at::Tensor result = at::empty(queries.sizes(), queries.options());
    if (!singles_.empty()) result.index_copy_(0, single_T_, AttendSingles(layer, queries, window));
    for (size_t p = 0; p < parts_.size(); ++p) {
      if (parts_[p].count == 1) continue;
      const auto of_part = [&](const at::Tensor& x) { return x.narrow(0, first_tokens_[p], parts_[p].count); };
      of_part(result).copy_(AttendToCopy(layer, parts_[p], of_part(queries), of_part(keys), of_part(values), window));
    }
    return result;
  }

  const PagedCache& cache_;
  const std::vector<model::CachedPart> parts_;
  const bool has_kernel_;
  int64_t tokens_ = 0;
  std::vector<int64_t> first_tokens_;  // of each part, in the pass
  // With kernels: the pages of all parts, one behind the other; and how the work is divided, by window.
  std::vector<int32_t> page_numbers_;
  std::vector<std::pair<int64_t, std::unique_ptr<kernels::PagedAttention>>> attentions_;
  // Without: the page and the place in it of each token.
  at::Tensor page_T_, slot_T_;
  std::vector<int64_t> singles_;                  // tokens that are parts of their own
  at::Tensor single_T_, positions_B_, table_BP_;  // of these: where they are in the pass, positions, pages
};

PagedCache::PagedCache(const model::ModelConfig& config, const at::TensorOptions& options, int64_t pages)
    : page_bytes_(PageBytes(config, c10::typeMetaToScalarType(options.dtype()))),
      table_(pages, kPageTokens),
      pages_(Zeros({pages, config.num_layers, 2, config.num_kv_heads, kPageTokens, config.head_dim}, options)) {}

int64_t PagedCache::PageBytes(const model::ModelConfig& config, at::ScalarType dtype) {
  return config.num_layers * 2 * config.num_kv_heads * kPageTokens * config.head_dim *
         static_cast<int64_t>(c10::elementSize(dtype));
}

std::optional<int64_t> PagedCache::Fork(int64_t sequence, int64_t length) {
  const std::optional<PageTable::Forked> forked = table_.Fork(sequence, length);
  if (!forked) return std::nullopt;
  if (forked->copy && pages_.is_cpu()) {
    auto* const bytes = static_cast<std::byte*>(pages_.mutable_data_ptr());
    std::memcpy(bytes + forked->copy->to * page_bytes_, bytes + forked->copy->from * page_bytes_,
                static_cast<size_t>(page_bytes_));
  } else if (forked->copy) {
    pages_[forked->copy->to].copy_(pages_[forked->copy->from]);
  }
  return forked->sequence;
}

std::unique_ptr<model::CachePass> PagedCache::Begin(std::vector<model::CachedPart> parts) {
  return std::make_unique<Pass>(*this, std::move(parts));
}

model::CacheUse PagedCache::use() const {
  return {.budget_bytes = table_.total() * page_bytes_,
          .held_bytes = (table_.total() - table_.free()) * page_bytes_,
          .kept_bytes = table_.kept() * page_bytes_};
}

}  // namespace tdock::engine
