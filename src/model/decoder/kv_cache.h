// Keys and values of the tokens that a decoder has seen, so that they need not pass through the model again.
//
// Shapes: T tokens of a pass, H heads, K heads of keys and values, D head size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/files/config.h"

namespace tdock::model {

// Tokens of one sequence in a pass: those at the positions begin … begin + count - 1. All before them are in the cache.
struct CachedPart {
  int64_t sequence = 0;
  int64_t begin = 0;
  int64_t count = 0;
};

// A cache, as the layers see it in one pass. Not thread-safe.
class CachePass {
 public:
  virtual ~CachePass() = default;

  // Keeps the keys and values of the pass's tokens, in the order of its parts. Gives, for each query,
  // softmax(q · keys / √D) · values over its own sequence up to itself, or, if `window` is not 0, over the last
  // `window` tokens of that. queries: [T, H, D]; keys, values: [T, K, D]; the result is [T, H, D].
  virtual at::Tensor Attend(size_t layer, const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                            int64_t window) = 0;
};

// What a cache holds.
struct CacheUse {
  int64_t budget_bytes = 0;
  int64_t held_bytes = 0;  // by sequences, or kept for those that begin alike
  int64_t kept_bytes = 0;  // of these, what no sequence has any more
};

// Sequences grow at their end only. Not thread-safe, but passes over different sequences may run at the same time.
class KvCache {
 public:
  virtual ~KvCache() = default;

  // A sequence without tokens.
  virtual int64_t Add() = 0;
  virtual void Remove(int64_t sequence) = 0;

  // Makes room for the first `length` tokens of a sequence. False where there is none; then nothing has changed.
  virtual bool Reserve(int64_t sequence, int64_t length) = 0;

  // A new sequence that begins with the first `length` tokens of another. Absent where there is no room.
  virtual std::optional<int64_t> Fork(int64_t sequence, int64_t length) = 0;

  // Of a sequence without tokens: lets it begin with what the cache has of `tokens`, and gives their number.
  virtual int64_t Share(int64_t sequence, std::span<const int32_t> tokens) = 0;
  // Says which tokens a sequence begins with, all of which have passed through the model, so that others can share
  // them.
  virtual void Publish(int64_t sequence, std::span<const int32_t> tokens) = 0;
  // Nothing that is in the cache now is shared any more, nor what its sequences will have: for other weights.
  virtual void Forget() = 0;

  // Room for what is passed must have been reserved. The cache must outlive the pass.
  virtual std::unique_ptr<CachePass> Begin(std::vector<CachedPart> parts) = 0;

  virtual CacheUse use() const = 0;
};

}  // namespace tdock::model
