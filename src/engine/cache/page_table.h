// Which pages of a cache hold which tokens of which sequences.
//
//   sequence 0   7 ─► 2 ─► 9          page 7 and 2 are full and shared; 9 and 4 are the sequences' own
//   sequence 1   7 ─► 2 ─► 4
//   by content   7, 2, 5              5 belongs to no sequence any more; it is given up when pages run out
//   free         1, 3, 6, 8
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace tdock::engine {

// A page has room for `page_tokens` tokens. Only full pages are shared, and their tokens never change. Not thread-safe.
class PageTable {
 public:
  PageTable(int64_t pages, int64_t page_tokens);

  int64_t Add();
  void Remove(int64_t sequence);

  // Room for `length` tokens. False where there are not enough pages; then nothing has changed.
  bool Reserve(int64_t sequence, int64_t length);

  // A new sequence with the pages of the first `length` tokens of another. The last page is a new one if it is not
  // full: copy `from` to `to`.
  struct Copy {
    int64_t from = 0;
    int64_t to = 0;
  };
  struct Forked {
    int64_t sequence = 0;
    std::optional<Copy> copy = std::nullopt;
  };
  std::optional<Forked> Fork(int64_t sequence, int64_t length);

  // Lets a sequence without pages begin with full pages of `tokens`, as far as there are any; gives the number of
  // tokens.
  int64_t Share(int64_t sequence, std::span<const int32_t> tokens);
  // The full pages of a sequence's first tokens become pages that others can share.
  void Publish(int64_t sequence, std::span<const int32_t> tokens);

  // Nothing that is published is shared any more, and of sequences that are here now nothing will be published.
  void Forget();

  std::span<const int32_t> pages(int64_t sequence) const { return sequences_.at(sequence).pages; }

  int64_t total() const { return total_; }
  int64_t free() const { return total_ - static_cast<int64_t>(pages_.size() - free_.size()); }
  int64_t kept() const { return static_cast<int64_t>(idle_.size()); }  // for others, without a sequence

  // Pages that are neither free, nor kept, nor a sequence's: always 0, unless there is a mistake here. Slow.
  int64_t Unreachable() const;

 private:
  struct Page {
    int64_t references = 0;  // of sequences
    bool published = false;
    uint64_t key = 0;                        // of what it and the pages before it hold
    uint64_t parent = 0;                     // the key of the page before
    std::vector<int32_t> tokens = {};        // if published
    std::list<int32_t>::iterator idle = {};  // where it is in idle_, if published and without references
  };
  struct Sequence {
    std::vector<int32_t> pages = {};
    size_t published = 0;   // pages, from the first
    uint64_t key = 0;       // of the last of these
    bool outdated = false;  // was here at Forget(), or is a fork of one that was
  };

  std::optional<int32_t> Take();
  void Hold(int32_t page);
  void Drop(int32_t page);
  void Withdraw(Page& page);
  uint64_t KeyOf(uint64_t parent, std::span<const int32_t> tokens) const;

  const int64_t total_;
  const int64_t page_tokens_;
  std::vector<Page> pages_;    // those that were ever used
  std::vector<int32_t> free_;  // of these
  std::list<int32_t> idle_;    // the one that was used longest ago first
  absl::flat_hash_map<uint64_t, int32_t> by_key_;
  absl::flat_hash_map<int64_t, Sequence> sequences_;
  int64_t next_ = 0;
};

}  // namespace tdock::engine
