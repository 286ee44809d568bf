// Gathers batches of experience, and cuts them into the mini-batches of an optimizer step, as DeepSpeed-Chat's
// MiniDataset does.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::data {

// Not thread-safe.
template <class T>
class MiniDataset {
 public:
  // `max_size` batches are gathered; each is split into chunks of `small_size` ≥ 1 items. With a max_size of 0, no
  // batch may be added.
  MiniDataset(int64_t max_size, int64_t small_size) : max_size_(max_size), small_size_(small_size) {
    TDOCK_CHECK(small_size_ > 0, "a chunk has at least one item");
  }

  // Nothing until max_size batches have been added; then the chunks of all of them, in order, and it is empty again. A
  // chunk holds items of one batch only, so the last chunk of a batch may be smaller. FailedPrecondition beyond
  // max_size.
  absl::StatusOr<std::optional<std::vector<std::vector<T>>>> Add(std::vector<T> batch) {
    if (static_cast<int64_t>(batches_.size()) >= max_size_) {
      return absl::FailedPreconditionError(
          absl::StrCat("the MiniDataset holds ", batches_.size(), " batches already, of at most ", max_size_));
    }
    batches_.push_back(std::move(batch));
    if (static_cast<int64_t>(batches_.size()) < max_size_) return std::nullopt;
    std::vector<std::vector<T>> chunks;
    for (std::vector<T>& full : batches_) {
      for (auto at = full.begin(); at != full.end();) {
        const auto end = at + std::min<std::ptrdiff_t>(full.end() - at, small_size_);
        chunks.emplace_back(std::make_move_iterator(at), std::make_move_iterator(end));
        at = end;
      }
    }
    batches_.clear();
    return chunks;
  }

  // Discards what was gathered.
  void Clear() { batches_.clear(); }

 private:
  const int64_t max_size_;
  const int64_t small_size_;
  std::vector<std::vector<T>> batches_;
};

}  // namespace tdock::data
