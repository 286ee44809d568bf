// Attention over keys and values in pages, on the CPU.
#pragma once

#include <c10/util/BFloat16.h>

#include <array>
#include <cstdint>
#include <vector>

namespace tdock::kernels {

// The positions of a page. Position p of a sequence is number p % kPageTokens of the page p / kPageTokens.
constexpr int64_t kPageTokens = 16;

// Query heads i·heads/kv_heads … share the keys and values of kv head i. kv_heads divides heads.
struct AttentionShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
};

// Keys and values of one layer. What page p has of kv head h begins at p · page_stride + h · head_stride:
//
//   keys    [head_dim][kPageTokens]   those of all positions side by side, so that scores of 16 are computed together
//   values  [kPageTokens][head_dim]
template <class T>
struct Pages {
  T* keys = nullptr;
  T* values = nullptr;
  int64_t page_stride = 0;
  int64_t head_stride = 0;
};

// Numbers [tokens, heads, head_dim], contiguous in the last dimension.
template <class T>
struct TokenRows {
  const T* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

// Queries of one sequence, of the positions begin … begin + count - 1, and keys and values that are not in its pages
// yet: those of the positions fresh_begin … begin + count - 1.
struct AttentionPart {
  const int32_t* pages = nullptr;  // of the sequence
  int64_t begin = 0;
  int64_t count = 0;
  int64_t first_query = 0;  // the row of position begin, in the queries and in the output
  int64_t fresh_begin = 0;
  int64_t first_fresh = 0;  // the row of position fresh_begin, in the fresh keys and values
  // For each query, whether it sees the positions 0 … begin + count - 1; at least one of them. If null, it sees those
  // up to its own within the window.
  const bool* visible = nullptr;
  int64_t visible_stride = 0;
};

// softmax(q · Kᵀ / √head_dim) · V for the queries of many sequences at the same time: how the work is divided. What
// `parts` point to must outlive it. Immutable, hence thread-safe.
//
// Computed in float32 and rounded once. Each score, each sum of weights and each output has one accumulator, to which
// head_dim numbers, or what is seen in the order of positions, are added one after the other. A result is therefore the
// same, bit for bit, whatever other queries there are, in whichever pages the keys are, whatever lies between those
// that are seen, and on any number of threads, as long as keys and values are finite.
// Source: Vaswani et al. 2017, arXiv:1706.03762, §3.2; grouped queries: Ainslie et al. 2023, arXiv:2305.13245.
class PagedAttention {
 public:
  // A query sees the last `window` positions up to its own; 0: all.
  PagedAttention(const AttentionShape& shape, int64_t window, std::vector<AttentionPart> parts);

  // Stores the fresh keys and values, and attends. The output is [queries, heads, head_dim], contiguous; log_sums,
  // unless null, gets log Σ exp(scores), [queries, heads]. Two calls at the same time must not store in the same pages.
  void Run(const Pages<float>& pages, const TokenRows<float>& queries, const TokenRows<float>& keys,
           const TokenRows<float>& values, float* output, float* log_sums = nullptr) const;
  void Run(const Pages<c10::BFloat16>& pages, const TokenRows<c10::BFloat16>& queries,
           const TokenRows<c10::BFloat16>& keys, const TokenRows<c10::BFloat16>& values, c10::BFloat16* output,
           float* log_sums = nullptr) const;

 private:
  // Rows of a part for one kv head: row r is query token r / group, and head r % group of those that share the kv head.
  struct Item {
    int32_t part = 0;
    int32_t kv_head = 0;
    int64_t begin_row = 0;
    int64_t end_row = 0;
    bool stores = false;  // also the fresh keys and values of this head, which no other item needs
  };

  template <class T>
  void RunTyped(const Pages<T>& pages, const TokenRows<T>& queries, const std::array<TokenRows<T>, 2>& fresh, T* output,
                float* log_sums) const;

  const AttentionShape shape_;
  const int64_t window_;
  const std::vector<AttentionPart> parts_;
  std::vector<Item> items_;
  std::vector<int64_t> costs_;  // of all items before each, and of all
  std::vector<Item> stored_first_;
};

}  // namespace tdock::kernels
