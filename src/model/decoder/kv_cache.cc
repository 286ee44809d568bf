#include "model/decoder/kv_cache.h"

#include <ATen/ATen.h>

namespace tdock::model {

KvCache::KvCache(const ModelConfig& config, int64_t rows, int64_t slots, const at::TensorOptions& options)
    : rows_(rows), slots_(slots), length_(slots) {
  const std::vector<int64_t> shape = {rows, slots, config.num_kv_heads, config.head_dim};
  // Zeros, not whatever is in memory: a slot that nobody may see still takes part in the product, with weight zero.
  for (int64_t i = 0; i < config.num_layers; ++i)
    layers_.push_back({at::zeros(shape, options), at::zeros(shape, options)});
}

void KvCache::SetLength(int64_t length) {
  TORCH_CHECK(length >= 0 && length <= slots_, "a length of ", length, " does not fit a cache of ", slots_, " slots");
  length_ = length;
}

void KvCache::SelectRows(const at::Tensor& index) {
  for (Layer& layer : layers_) {
    layer.keys = layer.keys.index_select(0, index);
    layer.values = layer.values.index_select(0, index);
  }
  rows_ = index.numel();
}

}  // namespace tdock::model
