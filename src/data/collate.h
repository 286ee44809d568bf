// Samples side by side, as the rows of a batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "data/encode.h"

namespace tdock::data {

// What the loss leaves out, in `labels`.
inline constexpr int32_t kIgnoredLabel = -100;

// Row-major [rows, width]. The mask says what is padding, whatever its id: a token that ends a text is none.
struct TokenRows {
  int64_t rows = 0;
  int64_t width = 0;
  std::vector<int32_t> ids = {};
  std::vector<uint8_t> mask = {};    // 1: a token of the sample, 0: padding
  std::vector<int32_t> labels = {};  // of CollateSft(); elsewhere empty
};

// Each of these pads to `width`, or to the longest row where `width` is 0. InvalidArgument for a longer row.

// Padded on the right; labels are the ids where the loss counts them, elsewhere kIgnoredLabel.
absl::StatusOr<TokenRows> CollateSft(std::span<const EncodedSample> samples, int32_t pad_id, int64_t width = 0);

// Padded on the right: all chosen rows, then all rejected ones.
absl::StatusOr<TokenRows> CollatePairs(std::span<const EncodedSample> samples, int32_t pad_id, int64_t width = 0);

// Padded on the left, so that every prompt ends in the last column.
absl::StatusOr<TokenRows> CollatePrompts(std::span<const EncodedSample> samples, int32_t pad_id, int64_t width = 0);

// Puts texts one after another, and cuts them in blocks of `block_size` ≥ 1 tokens; what is left at the end makes no
// block. Not thread-safe.
class BlockCutter {
 public:
  explicit BlockCutter(int64_t block_size);

  // The blocks that these tokens complete.
  std::vector<std::vector<int32_t>> Add(std::span<const int32_t> ids);
  // What makes no block yet.
  std::span<const int32_t> rest() const { return rest_; }

 private:
  const size_t block_size_;
  std::vector<int32_t> rest_;
};

}  // namespace tdock::data
