// Keys and values in pages.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "engine/cache/page_table.h"
#include "kernels/attention.h"
#include "model/decoder/kv_cache.h"

namespace tdock::engine {

// Sequences that begin alike share full pages, and what they hold is kept for others as long as nobody needs the room.
//
// On the CPU, in float32 and bfloat16, tokens attend to the pages where they are, with the same numbers whatever else
// is in the pass (kernels/attention.h). Otherwise what a token sees is copied together for libtorch's operation.
class PagedCache final : public model::KvCache {
 public:
  static constexpr int64_t kPageTokens = kernels::kPageTokens;

  // `options`: dtype and device of keys and values. `pages` ≥ 1. On the CPU a page takes memory from when it is first
  // used.
  PagedCache(const model::ModelConfig& config, const at::TensorOptions& options, int64_t pages);

  // Of one page.
  static int64_t PageBytes(const model::ModelConfig& config, at::ScalarType dtype);

  int64_t Add() override { return table_.Add(); }
  void Remove(int64_t sequence) override { table_.Remove(sequence); }
  bool Reserve(int64_t sequence, int64_t length) override { return table_.Reserve(sequence, length); }
  std::optional<int64_t> Fork(int64_t sequence, int64_t length) override;
  int64_t Share(int64_t sequence, std::span<const int32_t> tokens) override { return table_.Share(sequence, tokens); }
  void Publish(int64_t sequence, std::span<const int32_t> tokens) override { table_.Publish(sequence, tokens); }
  void Forget() override { table_.Forget(); }
  std::unique_ptr<model::CachePass> Begin(std::vector<model::CachedPart> parts) override;
  model::CacheUse use() const override;

  const PageTable& table() const { return table_; }

 private:
  class Pass;

  const int64_t page_bytes_;
  PageTable table_;
  // [pages, layers, 2, K, page tokens, D]: keys, then values. Where kernels attend, keys are [D, page tokens] instead.
  at::Tensor pages_;
};

}  // namespace tdock::engine
