// Keys and values of the tokens that a decoder has seen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/files/config.h"

namespace tdock::model {

// A token at position p of row b is stored in slot p of row b, so rows of different lengths need no padding, and what a
// padding token wrote is overwritten by the next token. Shapes: B rows, S slots. Not thread-safe.
class KvCache {
 public:
  struct Layer {
    at::Tensor keys;    // [B, S, kv heads, head dim]
    at::Tensor values;  // the same
  };

  // Room for `slots` positions of `rows` rows.
  KvCache(const ModelConfig& config, int64_t rows, int64_t slots, const at::TensorOptions& options);

  int64_t rows() const { return rows_; }
  int64_t slots() const { return slots_; }
  int64_t length() const { return length_; }
  Layer& layer(size_t index) { return layers_[index]; }

  // From now on tokens have positions below `length` ≤ slots(), which is checked on the CPU only, and later slots are
  // ignored.
  void SetLength(int64_t length);

  // Row i becomes the old row index[i] (int64, on the cache's device): drops, repeats and reorders rows.
  void SelectRows(const at::Tensor& index);

 private:
  int64_t rows_;
  int64_t slots_;
  int64_t length_;
  std::vector<Layer> layers_;
};

}  // namespace tdock::model
