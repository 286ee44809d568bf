#include "tdock/plans.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/tensor/balance.h"
#include "core/tensor/count_limits.h"

namespace tdock {
namespace {

absl::Status CheckLengths(std::span<const int64_t> lengths) {
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0 || lengths[i] > kMaxLength) {
      return absl::InvalidArgumentError(
          absl::StrCat("sample ", i, " has ", lengths[i], " tokens; from 0 to 2^40 are possible"));
    }
  }
  return absl::OkStatus();
}

// Up to 2^80, so that sums of it do not fit into 64 bits.
absl::int128 Work(int64_t length) {
  const absl::int128 tokens = length;
  return tokens * 24576 + tokens * tokens;
}

// The even places of the ascending order, then the odd ones in reverse.
std::vector<int64_t> LightestAtBothEnds(std::vector<size_t> positions, std::span<const int64_t> lengths) {
  std::sort(positions.begin(), positions.end(),
            [&](size_t a, size_t b) { return std::pair(lengths[a], a) < std::pair(lengths[b], b); });
  std::vector<int64_t> ordered;
  for (size_t i = 0; i < positions.size(); i += 2) ordered.push_back(static_cast<int64_t>(positions[i]));
  const size_t ascending = ordered.size();
  for (size_t i = 1; i < positions.size(); i += 2) ordered.push_back(static_cast<int64_t>(positions[i]));
  std::reverse(ordered.begin() + static_cast<std::ptrdiff_t>(ascending), ordered.end());
  return ordered;
}

// Positions from the longest to the shortest, equal ones ascending.
std::vector<int64_t> Descending(std::span<const int64_t> lengths) {
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
  });
  return order;
}

// As many empty bins as can be needed, in a tree whose nodes hold the most room of a bin below them: the first bin with
// enough is found in logarithmic time.
class Bins {
 public:
  Bins(size_t count, int64_t room) {
    while (leaves_ < count) leaves_ *= 2;
    room_.assign(2 * leaves_, room);
  }

  // Fills the first bin that has the room, and returns its number.
  size_t FillFirst(int64_t length) {
    size_t node = 1;
    while (node < leaves_) node = room_[2 * node] >= length ? 2 * node : 2 * node + 1;
    const size_t bin = node - leaves_;
    room_[node] -= length;
    for (node /= 2; node > 0; node /= 2) room_[node] = std::max(room_[2 * node], room_[2 * node + 1]);
    return bin;
  }

 private:
  size_t leaves_ = 1;
  std::vector<int64_t> room_;
};

struct MicroBatch {
  int64_t tokens = 0;
  std::vector<int64_t> positions;  // from the longest to the shortest

  void Add(int64_t position, int64_t length) {
    tokens += length;
    positions.push_back(position);
  }
  // The largest that can be split is at the top of a heap.
  friend bool operator<(const MicroBatch& a, const MicroBatch& b) {
    const bool a_splits = a.positions.size() > 1, b_splits = b.positions.size() > 1;
    if (a_splits != b_splits) return b_splits;
    return a.tokens != b.tokens ? a.tokens < b.tokens : a.positions > b.positions;
  }
};

// Gives each sample to the lighter of two halves, neither of which stays empty.
std::pair<MicroBatch, MicroBatch> Halve(const MicroBatch& whole, std::span<const int64_t> lengths) {
  std::pair<MicroBatch, MicroBatch> halves;
  for (int64_t position : whole.positions) {
    auto& [a, b] = halves;
    const bool to_a = std::pair(a.tokens, a.positions.size()) <= std::pair(b.tokens, b.positions.size());
    (to_a ? a : b).Add(position, lengths[static_cast<size_t>(position)]);
  }
  return halves;
}

}  // namespace

absl::StatusOr<Plan> BalanceRanks(std::span<const int64_t> lengths, int64_t ranks) {
  TDOCK_RETURN_IF_ERROR(CheckLengths(lengths));
  if (ranks <= 0)
    return absl::InvalidArgumentError(absl::StrCat(ranks, " data-parallel ranks; there must be at least 1"));
  TDOCK_RETURN_IF_ERROR(CheckAtMost("the number of data-parallel ranks", ranks, kMaxParts));
  if (lengths.size() % static_cast<size_t>(ranks) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(lengths.size(), " samples cannot be divided into ", ranks,
                                                   " sets of one size; pad them to a multiple of ", ranks));
  }
  std::vector<absl::int128> work;
  for (int64_t length : lengths) work.push_back(Work(length));
  Plan plan;
  for (std::vector<size_t>& set : BalanceEqualSizes(work, static_cast<size_t>(ranks))) {
    plan.push_back(LightestAtBothEnds(std::move(set), lengths));
  }
  return plan;
}

absl::StatusOr<Plan> PackMicroBatches(std::span<const int64_t> lengths, const MicroBatchOptions& options) {
  TDOCK_RETURN_IF_ERROR(CheckLengths(lengths));
  if (options.max_tokens <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("max_tokens is ", options.max_tokens, "; it must be positive"));
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > options.max_tokens) {
      return absl::InvalidArgumentError(absl::StrCat("sample ", i, " has ", lengths[i],
                                                     " tokens; a micro-batch has at most ", options.max_tokens,
                                                     " (max_tokens)"));
    }
  }
  if (options.min_count > static_cast<int64_t>(lengths.size())) {
    return absl::InvalidArgumentError(absl::StrCat(lengths.size(), " samples cannot be divided into ",
                                                   options.min_count, " micro-batches (min_count)"));
  }

  std::vector<MicroBatch> micro_batches;
  Bins bins(lengths.size(), options.max_tokens);
  for (int64_t position : Descending(lengths)) {
    const int64_t length = lengths[static_cast<size_t>(position)];
    const size_t bin = bins.FillFirst(length);
    if (bin == micro_batches.size()) micro_batches.emplace_back();
    micro_batches[bin].Add(position, length);
  }
  std::make_heap(micro_batches.begin(), micro_batches.end());
  while (static_cast<int64_t>(micro_batches.size()) < options.min_count) {
    std::pop_heap(micro_batches.begin(), micro_batches.end());
    auto [a, b] = Halve(micro_batches.back(), lengths);
    micro_batches.back() = std::move(a);
    std::push_heap(micro_batches.begin(), micro_batches.end());
    micro_batches.push_back(std::move(b));
    std::push_heap(micro_batches.begin(), micro_batches.end());
  }

  Plan plan;
  for (MicroBatch& micro_batch : micro_batches) {
    std::sort(micro_batch.positions.begin(), micro_batch.positions.end());
    plan.push_back(std::move(micro_batch.positions));
  }
  std::sort(plan.begin(), plan.end());
  return plan;
}

}  // namespace tdock
