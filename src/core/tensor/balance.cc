#include "core/tensor/balance.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

namespace tdock {
namespace {

template <class Weight>
struct Set {
  Weight sum = 0;
  std::vector<size_t> positions;

  // Heavier sets come first; of equal ones, those with later positions.
  friend bool operator<(const Set& a, const Set& b) {
    return a.sum != b.sum ? a.sum > b.sum : a.positions > b.positions;
  }
};

// One way to share out some of the weights: as many sets as there are parts, heaviest first.
template <class Weight>
struct Split {
  std::vector<Set<Weight>> sets;

  Weight spread() const { return sets.front().sum - sets.back().sum; }
  // The widest spread is at the top of a heap.
  friend bool operator<(const Split& a, const Split& b) {
    return a.spread() != b.spread() ? a.spread() < b.spread() : b.sets.front() < a.sets.front();
  }
};

// The heaviest set of one joins the lightest of the other, and so on.
template <class Weight>
void Merge(Split<Weight>& into, Split<Weight> from) {
  const size_t parts = into.sets.size();
  for (size_t i = 0; i < parts; ++i) {
    Set<Weight>& set = into.sets[i];
    const Set<Weight>& other = from.sets[parts - 1 - i];
    set.sum += other.sum;
    set.positions.insert(set.positions.end(), other.positions.begin(), other.positions.end());
  }
  std::sort(into.sets.begin(), into.sets.end());
}

template <class Weight>
std::vector<std::vector<size_t>> Balance(std::span<const Weight> weights, size_t parts) {
  std::vector<size_t> ascending(weights.size());
  std::iota(ascending.begin(), ascending.end(), size_t{0});
  std::stable_sort(ascending.begin(), ascending.end(), [&](size_t a, size_t b) { return weights[a] < weights[b]; });

  std::vector<Split<Weight>> splits;
  for (size_t i = 0; i < ascending.size(); i += parts) {
    Split<Weight>& split = splits.emplace_back();
    for (size_t k = 0; k < parts; ++k) split.sets.push_back({weights[ascending[i + k]], {ascending[i + k]}});
    std::sort(split.sets.begin(), split.sets.end());
  }
  std::make_heap(splits.begin(), splits.end());
  while (splits.size() > 1) {
    std::pop_heap(splits.begin(), splits.end());
    Split<Weight> widest = std::move(splits.back());
    splits.pop_back();
    std::pop_heap(splits.begin(), splits.end());
    Merge(widest, std::move(splits.back()));
    splits.back() = std::move(widest);
    std::push_heap(splits.begin(), splits.end());
  }
  std::vector<std::vector<size_t>> parts_of(parts);
  if (splits.empty()) return parts_of;
  for (size_t i = 0; i < parts; ++i) parts_of[i] = std::move(splits.front().sets[i].positions);
  return parts_of;
}

}  // namespace

std::vector<std::vector<size_t>> BalanceEqualSizes(std::span<const int64_t> weights, size_t parts) {
  return Balance(weights, parts);
}

std::vector<std::vector<size_t>> BalanceEqualSizes(std::span<const absl::int128> weights, size_t parts) {
  return Balance(weights, parts);
}

}  // namespace tdock
