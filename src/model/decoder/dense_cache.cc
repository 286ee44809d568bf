#include "model/decoder/dense_cache.h"

#include <ATen/ATen.h>

#include <utility>

#include "kernels/attention_in_rows.h"
#include "model/decoder/attend_part.h"

namespace tdock::model {
namespace {

// The same as AttendPart(), by kernels that give the same bits whatever part it is.
at::Tensor AttendInvariantly(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values, int64_t begin,
                             int64_t window) {
  const kernels::SequencePart part = {.count = queries.size(0), .positions = begin + queries.size(0)};
  return kernels::AttendInRows(queries, keys, values, {&part, 1}, window).output;
}

}  // namespace

class DenseCache::Pass final : public CachePass {
 public:
  Pass(std::vector<std::pair<CachedPart, Sequence*>> parts, bool by_kernels)
      : parts_(std::move(parts)), by_kernels_(by_kernels) {}

  at::Tensor Attend(size_t layer, const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                    int64_t window) override {
    std::vector<at::Tensor> results;
    int64_t first = 0;
    for (const auto& [part, sequence] : parts_) {
      Layer& kept = sequence->layers[layer];
      const auto append = [&, begin = part.begin, count = part.count](const at::Tensor& old, const at::Tensor& fresh) {
        return at::cat({old.narrow(0, 0, begin), fresh.narrow(0, first, count)});
      };
      kept = {append(kept.keys, keys), append(kept.values, values)};
      const auto attend = by_kernels_ ? AttendInvariantly : AttendPart;
      results.push_back(attend(queries.narrow(0, first, part.count), kept.keys, kept.values, part.begin, window));
      first += part.count;
    }
    TORCH_CHECK(first == queries.size(0), "a pass of ", queries.size(0), " tokens over parts of ", first);
    return at::cat(results);
  }

 private:
  const std::vector<std::pair<CachedPart, Sequence*>> parts_;
  const bool by_kernels_;
};

DenseCache::DenseCache(const ModelConfig& config, const at::TensorOptions& options, bool by_kernels,
                       int64_t most_tokens)
    : num_layers_(config.num_layers),
      shape_({0, config.num_kv_heads, config.head_dim}),
      options_(options),
      by_kernels_(by_kernels),
      most_tokens_(most_tokens) {}

int64_t DenseCache::Add() {
  const at::Tensor nothing = at::empty(shape_, options_);
  sequences_[next_].layers.resize(static_cast<size_t>(num_layers_), {nothing, nothing});
  return next_++;
}

void DenseCache::Remove(int64_t sequence) { sequences_.erase(sequence); }

int64_t DenseCache::Reserved() const {
  int64_t reserved = 0;
  for (const auto& [number, sequence] : sequences_) reserved += sequence.reserved;
  return reserved;
}

bool DenseCache::Reserve(int64_t sequence, int64_t length) {
  int64_t& reserved = sequences_.at(sequence).reserved;
  if (length <= reserved) return true;
  if (length - reserved > most_tokens_ - Reserved()) return false;
  reserved = length;
  return true;
}

std::optional<int64_t> DenseCache::Fork(int64_t sequence, int64_t length) {
  const int64_t copy = Add();
  if (!Reserve(copy, length)) {
    Remove(copy);
    return std::nullopt;
  }
  const std::vector<Layer>& from = sequences_.at(sequence).layers;
  std::vector<Layer>& to = sequences_.at(copy).layers;
  for (size_t i = 0; i < from.size(); ++i) {
    to[i] = {from[i].keys.narrow(0, 0, length), from[i].values.narrow(0, 0, length)};
  }
  return copy;
}

int64_t DenseCache::Share(int64_t /*sequence*/, std::span<const int32_t> /*tokens*/) { return 0; }
void DenseCache::Publish(int64_t /*sequence*/, std::span<const int32_t> /*tokens*/) {}

std::unique_ptr<CachePass> DenseCache::Begin(std::vector<CachedPart> parts) {
  std::vector<std::pair<CachedPart, Sequence*>> found;
  for (const CachedPart& part : parts) {
    Sequence& sequence = sequences_.at(part.sequence);
    TORCH_CHECK(part.begin >= 0 && part.begin <= sequence.layers[0].keys.size(0) &&
                    part.begin + part.count <= sequence.reserved,
                "tokens ", part.begin, " to ", part.begin + part.count, " of a sequence of ",
                sequence.layers[0].keys.size(0), " tokens with room for ", sequence.reserved);
    found.emplace_back(part, &sequence);
  }
  return std::make_unique<Pass>(std::move(found), by_kernels_);
}

CacheUse DenseCache::use() const {
  const int64_t token_bytes =
      2 * num_layers_ * shape_[1] * shape_[2] * static_cast<int64_t>(options_.dtype().itemsize());
  CacheUse use{.budget_bytes = most_tokens_ > std::numeric_limits<int64_t>::max() / token_bytes
                                   ? std::numeric_limits<int64_t>::max()
                                   : most_tokens_ * token_bytes};
  for (const auto& [number, sequence] : sequences_) {
    use.held_bytes += sequence.reserved * token_bytes;
  }
  return use;
}

}  // namespace tdock::model
