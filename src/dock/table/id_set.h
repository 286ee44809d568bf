// A set of 64-bit ids in ascending order, with selection by rank.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tdock::dock {

// An operation takes a few nanoseconds whatever the size, and dense ids take about two bits each: a tree of fan-out 32
// over leaves of 32768 ids, whose nodes count the ids below them. Empty nodes are freed, except for a few. Not
// thread-safe.
//
//   inner   | count of child 0 | … | count of child 31 |      covers 32 × what a child covers
//   leaf    | count of part 0 | … | 1024 bits of part 0 | …   32 parts; in one piece, so that a set of ten million ids
//                                                             lies in few pages of memory, which the processor can find
class IdSet {
 public:
  IdSet() = default;
  ~IdSet();
  IdSet(const IdSet&) = delete;
  IdSet& operator=(const IdSet&) = delete;

  int64_t size() const { return size_; }

  // Adds or removes all ids of [begin, end); adding present ids or removing absent ones has no effect.
  void Insert(uint64_t begin, uint64_t end) { Change(begin, end, true); }
  void Erase(uint64_t begin, uint64_t end) { Change(begin, end, false); }
  void Insert(uint64_t id) { Change(id, id + 1, true); }
  void Erase(uint64_t id) { Change(id, id + 1, false); }
  bool Contains(uint64_t id) const;

  // The id with exactly `rank` smaller ones in the set. 0 ≤ rank < size().
  uint64_t Select(int64_t rank) const;
  // Appends one id for each rank. Much cheaper than one by one if the set is larger than a cache.
  void Select(std::span<const int64_t> ranks, std::vector<uint64_t>& ids) const;

  // Appends the first `count` ids, or all if there are fewer.
  void First(int64_t count, std::vector<uint64_t>& ids) const;

 private:
  static constexpr int kPartBits = 10, kLeafBits = 15, kFanBits = 5;
  static constexpr int kPartWords = (1 << kPartBits) / 64, kLeafWords = (1 << kLeafBits) / 64;
  static constexpr int kParts = 1 << (kLeafBits - kPartBits), kFan = 1 << kFanBits;
  static constexpr int kMaxHeight = (64 - kLeafBits + kFanBits - 1) / kFanBits;
  static constexpr size_t kSpares = 2;

  struct alignas(64) Leaf {
    std::array<uint16_t, kParts> counts{};
    std::array<uint64_t, kLeafWords> words{};
  };
  struct Inner {
    uint32_t occupied = 0;  // bit mask of the children with a count above zero
    std::array<int64_t, kFan> counts{};
    std::array<void*, kFan> children{};
  };
  // The path down to the id with a rank.
  struct Search {
    const void* node;
    int64_t rank;     // in the node
    uint64_t id = 0;  // its high bits

    const Leaf& leaf() const { return *static_cast<const Leaf*>(node); }
    // The words of the leaf part that contains `id`.
    const uint64_t* part() const { return leaf().words.data() + id % kParts * kPartWords; }
  };

  void Change(uint64_t begin, uint64_t end, bool insert);
  void ChangeInLeaf(uint64_t begin, uint64_t end, bool insert);
  // Grows the tree until it covers `id`.
  void Cover(uint64_t id);
  bool Covers(uint64_t id) const;
  static int ChildIndex(uint64_t id, int height) {
    return static_cast<int>((id >> (kLeafBits + (height - 1) * kFanBits)) & (kFan - 1));
  }
  static void StepDown(Search& search);
  static void StepToPart(Search& search);
  static uint64_t SelectInPart(const Search& search);
  static void Collect(const void* node, int height, uint64_t base, size_t limit, std::vector<uint64_t>& ids);

  Leaf* NewLeaf();
  Inner* NewInner();
  // `node` holds no ids.
  void Retire(void* node, int height);
  static void Delete(void* node, int height);

  // A leaf when the height is 0. Null when the set is empty.
  void* root_ = nullptr;
  int height_ = 0;
  int64_t size_ = 0;
  // Spare empty nodes, all zero, so that a set that alternates between empty and not empty does not allocate.
  std::vector<std::unique_ptr<Leaf>> spare_leaves_;
  std::vector<std::unique_ptr<Inner>> spare_inners_;
};

}  // namespace tdock::dock
