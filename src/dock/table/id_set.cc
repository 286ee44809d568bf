#include "dock/table/id_set.h"

#include <algorithm>
#include <bit>

namespace tdock::dock {
namespace {

// The bits [begin, end) of a word, 0 ≤ begin < end ≤ 64.
uint64_t MaskOf(uint64_t begin, uint64_t end) { return (~uint64_t{0} >> (64 - (end - begin))) << begin; }

// The position of the set bit with `rank` set bits below it.
int SelectBit(uint64_t word, int64_t rank) {
  for (; rank > 0; --rank) word &= word - 1;
  return std::countr_zero(word);
}

}  // namespace

IdSet::~IdSet() {
  if (root_ != nullptr) Delete(root_, height_);
}

void IdSet::Delete(void* node, int height) {
  if (height == 0) {
    delete static_cast<Leaf*>(node);
    return;
  }
  Inner* const inner = static_cast<Inner*>(node);
  for (uint32_t left = inner->occupied; left != 0; left &= left - 1) {
    Delete(inner->children[static_cast<size_t>(std::countr_zero(left))], height - 1);
  }
  delete inner;
}

IdSet::Leaf* IdSet::NewLeaf() {
  if (spare_leaves_.empty()) return new Leaf;
  Leaf* const leaf = spare_leaves_.back().release();
  spare_leaves_.pop_back();
  return leaf;
}

IdSet::Inner* IdSet::NewInner() {
  if (spare_inners_.empty()) return new Inner;
  Inner* const inner = spare_inners_.back().release();
  spare_inners_.pop_back();
  return inner;
}

void IdSet::Retire(void* node, int height) {
  if (height == 0) {
    std::unique_ptr<Leaf> leaf(static_cast<Leaf*>(node));
    if (spare_leaves_.size() < kSpares) spare_leaves_.push_back(std::move(leaf));
  } else {
    std::unique_ptr<Inner> inner(static_cast<Inner*>(node));
    if (spare_inners_.size() < kSpares) spare_inners_.push_back(std::move(inner));
  }
}

bool IdSet::Covers(uint64_t id) const {
  const int bits = kLeafBits + height_ * kFanBits;
  return bits >= 64 || id >> bits == 0;
}

void IdSet::Cover(uint64_t id) {
  if (root_ == nullptr) height_ = 0;
  while (!Covers(id)) {
    if (root_ != nullptr) {
      Inner* const inner = NewInner();
      inner->children[0] = root_;
      inner->counts[0] = size_;
      inner->occupied = 1;
      root_ = inner;
    }
    ++height_;
  }
  if (root_ == nullptr) root_ = height_ == 0 ? static_cast<void*>(NewLeaf()) : NewInner();
}

void IdSet::Change(uint64_t begin, uint64_t end, bool insert) {
  while (begin < end) {
    const uint64_t leaf_end = (begin | ((uint64_t{1} << kLeafBits) - 1)) + 1;
    const uint64_t stop = std::min(end, leaf_end);
    ChangeInLeaf(begin, stop, insert);
    begin = stop;
  }
}

void IdSet::ChangeInLeaf(uint64_t begin, uint64_t end, bool insert) {
  if (insert) {
    Cover(begin);
  } else if (root_ == nullptr || !Covers(begin)) {
    return;
  }
  Inner* path[kMaxHeight];
  void* node = root_;
  for (int height = height_; height > 0; --height) {
    Inner* const inner = static_cast<Inner*>(node);
    path[height - 1] = inner;
    const size_t child = static_cast<size_t>(ChildIndex(begin, height));
    if ((inner->occupied >> child & 1) == 0) {
      if (!insert) return;
      inner->children[child] = height == 1 ? static_cast<void*>(NewLeaf()) : NewInner();
      inner->occupied |= uint32_t{1} << child;
    }
    node = inner->children[child];
  }

  Leaf* const leaf = static_cast<Leaf*>(node);
  int64_t change = 0;
  uint64_t first = begin & ((uint64_t{1} << kLeafBits) - 1);
  const uint64_t last = first + (end - begin);
  while (first < last) {
    const uint64_t stop = std::min(last, (first | 63) + 1);
    const uint64_t mask = MaskOf(first % 64, first % 64 + (stop - first));
    uint64_t& word = leaf->words[first / 64];
    if (const uint64_t changes = mask & (insert ? ~word : word)) {
      const int count = std::has_single_bit(changes) ? 1 : std::popcount(changes);
      uint16_t& part = leaf->counts[first >> kPartBits];
      part = static_cast<uint16_t>(insert ? part + count : part - count);
      change += count;
      word ^= changes;
    }
    first = stop;
  }
  if (change == 0) return;
  if (!insert) change = -change;

  size_ += change;
  for (int height = 1; height <= height_; ++height) {
    Inner* const inner = path[height - 1];
    const size_t child = static_cast<size_t>(ChildIndex(begin, height));
    inner->counts[child] += change;
    if (inner->counts[child] == 0) {
      Retire(inner->children[child], height - 1);
      inner->children[child] = nullptr;
      inner->occupied &= ~(uint32_t{1} << child);
    }
  }
  if (size_ == 0) {
    Retire(root_, height_);
    root_ = nullptr;
  }
}

bool IdSet::Contains(uint64_t id) const {
  if (root_ == nullptr || !Covers(id)) return false;
  const void* node = root_;
  for (int height = height_; height > 0; --height) {
    const Inner* const inner = static_cast<const Inner*>(node);
    node = inner->children[static_cast<size_t>(ChildIndex(id, height))];
    if (node == nullptr) return false;
  }
  return static_cast<const Leaf*>(node)->words[id / 64 % kLeafWords] >> (id % 64) & 1;
}

void IdSet::StepDown(Search& search) {
  const Inner* const inner = static_cast<const Inner*>(search.node);
  uint32_t left = inner->occupied;
  size_t child = static_cast<size_t>(std::countr_zero(left));
  while (search.rank >= inner->counts[child]) {
    search.rank -= inner->counts[child];
    left &= left - 1;
    child = static_cast<size_t>(std::countr_zero(left));
  }
  search.id = search.id << kFanBits | child;
  search.node = inner->children[child];
}

void IdSet::StepToPart(Search& search) {
  const auto& counts = search.leaf().counts;
  size_t part = 0;
  for (; search.rank >= counts[part]; ++part) search.rank -= counts[part];
  search.id = search.id << (kLeafBits - kPartBits) | part;
}

uint64_t IdSet::SelectInPart(const Search& search) {
  const uint64_t* const words = search.part();
  int64_t rank = search.rank;
  for (uint64_t word = 0;; ++word) {
    const int here = std::popcount(words[word]);
    if (rank < here) return search.id << kPartBits | word * 64 | static_cast<uint64_t>(SelectBit(words[word], rank));
    rank -= here;
  }
}

uint64_t IdSet::Select(int64_t rank) const {
  Search search{.node = root_, .rank = rank};
  for (int height = height_; height > 0; --height) StepDown(search);
  StepToPart(search);
  return SelectInPart(search);
}

void IdSet::Select(std::span<const int64_t> ranks, std::vector<uint64_t>& ids) const {
  // All searches of a round advance in lockstep, so that their cache misses overlap.
  constexpr size_t kRound = 32;
  constexpr size_t kLineWords = 8;
  std::array<Search, kRound> searches;
  for (; !ranks.empty(); ranks = ranks.subspan(std::min(kRound, ranks.size()))) {
    const std::span<Search> round(searches.data(), std::min(kRound, ranks.size()));
    for (size_t i = 0; i < round.size(); ++i) {
      round[i] = {.node = root_, .rank = ranks[i]};
      // The few inner nodes stay in the caches.
      for (int height = height_; height > 0; --height) StepDown(round[i]);
      __builtin_prefetch(&round[i].leaf().counts);
    }
    for (Search& search : round) {
      StepToPart(search);
      __builtin_prefetch(search.part());
      __builtin_prefetch(search.part() + kLineWords);
    }
    for (const Search& search : round) ids.push_back(SelectInPart(search));
  }
}

void IdSet::First(int64_t count, std::vector<uint64_t>& ids) const {
  if (root_ != nullptr && count > 0) Collect(root_, height_, 0, ids.size() + static_cast<size_t>(count), ids);
}

void IdSet::Collect(const void* node, int height, uint64_t base, size_t limit, std::vector<uint64_t>& ids) {
  if (height > 0) {
    const Inner* const inner = static_cast<const Inner*>(node);
    for (uint32_t left = inner->occupied; left != 0 && ids.size() < limit; left &= left - 1) {
      const uint64_t child = static_cast<uint64_t>(std::countr_zero(left));
      Collect(inner->children[child], height - 1, base << kFanBits | child, limit, ids);
    }
    return;
  }
  const Leaf* const leaf = static_cast<const Leaf*>(node);
  for (size_t word = 0; word < kLeafWords; ++word) {
    if (leaf->counts[word / kPartWords] == 0) word |= kPartWords - 1;  // the next part
    for (uint64_t left = leaf->words[word]; left != 0; left &= left - 1) {
      if (ids.size() == limit) return;
      ids.push_back(base << kLeafBits | word * 64 | static_cast<uint64_t>(std::countr_zero(left)));
    }
  }
}

}  // namespace tdock::dock
