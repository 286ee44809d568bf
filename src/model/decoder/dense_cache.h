// The plainest cache: each sequence has tensors of its own, which are copied for each token.
#pragma once

#include <limits>
#include <map>

#include "model/decoder/kv_cache.h"

namespace tdock::model {

// Shares nothing between sequences. What every other cache is compared with.
class DenseCache final : public KvCache {
 public:
  // `options`: dtype and device of keys and values. `by_kernels`: for a decoder that HasKernels(). The budget is
  // in tokens of all sequences together.
  DenseCache(const ModelConfig& config, const at::TensorOptions& options, bool by_kernels = false,
             int64_t most_tokens = std::numeric_limits<int64_t>::max());

  int64_t Add() override;
  void Remove(int64_t sequence) override;
  bool Reserve(int64_t sequence, int64_t length) override;
  std::optional<int64_t> Fork(int64_t sequence, int64_t length) override;
  int64_t Share(int64_t sequence, std::span<const int32_t> tokens) override;
  void Publish(int64_t sequence, std::span<const int32_t> tokens) override;
  void Forget() override {}
  std::unique_ptr<CachePass> Begin(std::vector<CachedPart> parts) override;
  CacheUse use() const override;

 private:
  struct Layer {
    at::Tensor keys, values;  // [length, K, D]
  };
  struct Sequence {
    int64_t reserved = 0;
    std::vector<Layer> layers;
  };
  class Pass;

  int64_t Reserved() const;

  const int64_t num_layers_;
  const std::vector<int64_t> shape_;  // of no tokens
  const at::TensorOptions options_;
  const bool by_kernels_;
  const int64_t most_tokens_;
  int64_t next_ = 0;
  std::map<int64_t, Sequence> sequences_;
};

}  // namespace tdock::model
