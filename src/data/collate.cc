#include "data/collate.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::data {
namespace {

using Rows = std::vector<std::span<const int32_t>>;

absl::StatusOr<TokenRows> Padded(const Rows& rows, int32_t pad_id, int64_t width, bool left) {
  size_t longest = 0;
  for (const auto& row : rows) longest = std::max(longest, row.size());
  if (width == 0) width = static_cast<int64_t>(longest);
  if (static_cast<int64_t>(longest) > width) {
    return absl::InvalidArgumentError(
        absl::StrCat("a row has ", longest, " tokens, which is more than the ", width, " of the batch"));
  }
  TokenRows padded{.rows = static_cast<int64_t>(rows.size()), .width = width};
  padded.ids.assign(rows.size() * static_cast<size_t>(width), pad_id);
  padded.mask.assign(padded.ids.size(), 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t begin = i * static_cast<size_t>(width) + (left ? static_cast<size_t>(width) - rows[i].size() : 0);
    std::copy(rows[i].begin(), rows[i].end(), padded.ids.begin() + static_cast<std::ptrdiff_t>(begin));
    std::fill_n(padded.mask.begin() + static_cast<std::ptrdiff_t>(begin), rows[i].size(), uint8_t{1});
  }
  return padded;
}

}  // namespace

absl::StatusOr<TokenRows> CollateSft(std::span<const EncodedSample> samples, int32_t pad_id, int64_t width) {
  Rows rows;
  for (const EncodedSample& sample : samples) rows.emplace_back(sample.ids);
  TDOCK_ASSIGN_OR_RETURN(TokenRows padded, Padded(rows, pad_id, width, false));
  padded.labels.assign(padded.ids.size(), kIgnoredLabel);
  for (size_t i = 0; i < samples.size(); ++i) {
    TDOCK_CHECK(samples[i].loss_mask.size() == samples[i].ids.size(), "each token of a sample has a loss mask");
    for (size_t j = 0; j < samples[i].ids.size(); ++j) {
      if (samples[i].loss_mask[j] != 0) padded.labels[i * static_cast<size_t>(padded.width) + j] = samples[i].ids[j];
    }
  }
  return padded;
}

absl::StatusOr<TokenRows> CollatePairs(std::span<const EncodedSample> samples, int32_t pad_id, int64_t width) {
  Rows rows;
  for (const EncodedSample& sample : samples) rows.emplace_back(sample.ids);
  for (const EncodedSample& sample : samples) rows.emplace_back(sample.rejected);
  return Padded(rows, pad_id, width, false);
}

absl::StatusOr<TokenRows> CollatePrompts(std::span<const EncodedSample> samples, int32_t pad_id, int64_t width) {
  Rows rows;
  for (const EncodedSample& sample : samples) rows.emplace_back(sample.ids);
  return Padded(rows, pad_id, width, true);
}

BlockCutter::BlockCutter(int64_t block_size) : block_size_(static_cast<size_t>(block_size)) {
  TDOCK_CHECK(block_size > 0, "a block has at least one token");
}

std::vector<std::vector<int32_t>> BlockCutter::Add(std::span<const int32_t> ids) {
  std::vector<std::vector<int32_t>> blocks;
  while (rest_.size() + ids.size() >= block_size_) {
    const size_t missing = block_size_ - rest_.size();
    rest_.insert(rest_.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(missing));
    ids = ids.subspan(missing);
    blocks.push_back(std::move(rest_));
    rest_.clear();
  }
  rest_.insert(rest_.end(), ids.begin(), ids.end());
  return blocks;
}

}  // namespace tdock::data
