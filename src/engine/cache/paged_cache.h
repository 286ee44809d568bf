// Keys and values in pages.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "engine/cache/page_table.h"
#include "model/decoder/kv_cache.h"

namespace tdock::engine {

// Sequences that begin alike share full pages, and what they hold is kept for others as long as nobody needs the room.
//
// On the CPU, in float32 and bfloat16, single tokens attend to the pages where they are (kernels/attention.h), and so
// do all tokens if it is batch-invariant. Otherwise what a token sees is copied together for libtorch's operation.
class PagedCache final : public model::KvCache {
 public:
  static constexpr int64_t kPageTokens = 16;

  // `options`: dtype and device of keys and values. `pages` ≥ 1. `batch_invariant`: see
  // Decoder::SetBatchInvariant(). On the CPU a page takes memory from when it is first used.
  PagedCache(const model::ModelConfig& config, const at::TensorOptions& options, int64_t pages,
             bool batch_invariant = false);

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
  const bool batch_invariant_;
  PageTable table_;
  at::Tensor pages_;  // [pages, layers, 2, K, page tokens, D]: keys, then values
};

}  // namespace tdock::engine
