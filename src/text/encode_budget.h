// The limits of one encoding: tokens, growth, time. Internal to this module.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "text/tokenizer.h"

namespace tdock::text {

// Counts work for the stop check, tokens, and what the tokenizer's parts make of the text. Not thread-safe; the options
// must outlive it.
class EncodeBudget {
 public:
  // For a text of `text_bytes`. The stop check is polled with the first work.
  EncodeBudget(size_t text_bytes, const EncodeOptions& options)
      : text_bytes_(text_bytes), max_tokens_(options.max_tokens), stop_(options.stop ? &options.stop : nullptr) {}
  // Without a limit on tokens, and not to be stopped.
  explicit EncodeBudget(size_t text_bytes) : text_bytes_(text_bytes) {}

  // A unit of work is what a byte of text costs, about 50 ns.
  absl::Status Spend(size_t work) {
    if (stop_ == nullptr) [[likely]]
      return absl::OkStatus();
    if (work < left_) {
      left_ -= work;
      return absl::OkStatus();
    }
    left_ = kWorkBetweenPolls;
    return (*stop_)();
  }

  size_t max_tokens() const { return max_tokens_; }
  absl::Status TooManyTokens() const {
    return absl::OutOfRangeError(
        absl::StrCat("the text has more than ", max_tokens_, " tokens, the limit; encoding stopped there"));
  }

  // Checks whether a part of the text may become as long as `bytes` in `step`, such as "the normalizer Replace". To be
  // asked before the memory is taken. InvalidArgument where all parts together would be longer than a text may become.
  absl::Status CheckGrowth(size_t bytes, absl::string_view step) const {
    if (bytes <= max_bytes() - made_) [[likely]]
      return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(step, " makes more than ", max_bytes(), " bytes of a text of ",
                                                   text_bytes_, "; the limit is ", kMaxGrowth, " times as many and ",
                                                   kMoreBytes, " more, but never above ", kMaxTextBytes));
  }
  // A part of the text has become `bytes` in the end, for which CheckGrowth() was asked.
  void Keep(size_t bytes) { made_ += bytes < max_bytes() - made_ ? bytes : max_bytes() - made_; }

  // No normalizer of a real tokenizer makes as much of a text: U+FDFA, of 3 bytes, becomes 33 in NFKD.
  static constexpr size_t kMaxGrowth = 16;
  static constexpr size_t kMoreBytes = 4096;

 private:
  static constexpr size_t kWorkBetweenPolls = size_t{1} << 16;

  size_t max_bytes() const { return std::min(kMaxGrowth * text_bytes_ + kMoreBytes, kMaxTextBytes); }

  const size_t text_bytes_;
  const size_t max_tokens_ = std::numeric_limits<size_t>::max();
  const StopCheck* const stop_ = nullptr;
  size_t left_ = 0;
  size_t made_ = 0;
};

// How many components a normalizer, pre-tokenizer, post-processor or decoder may be a sequence of.
inline constexpr size_t kMaxComponents = 256;

}  // namespace tdock::text
