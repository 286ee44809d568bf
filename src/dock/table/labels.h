// The keys and tags of a table's rows.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/strings/string_view.h"
#include "core/base/huge_pages.h"
#include "tdock/rows.h"

namespace tdock::dock {

// Rows without a key and tags take no memory. Not thread-safe.
class Labels {
 public:
  struct Label {
    std::string key = {};
    std::shared_ptr<const Tags> tags = {};  // null: none
  };

  bool empty() const { return by_row_.empty(); }
  // An empty label for rows without one.
  const Label& Of(RowId row) const {
    static const Label kNone;
    const auto it = by_row_.find(row);
    return it == by_row_.end() ? kNone : it->second;
  }
  // Prefetches what FindKey will read.
  void Prefetch(const std::string& key) const { by_key_.prefetch(key); }
  // Null if there is none.
  const RowId* FindKey(absl::string_view key) const {
    const auto it = by_key_.find(key);
    return it == by_key_.end() ? nullptr : &it->second;
  }

  // The key must not be in use.
  void SetKey(RowId row, const std::string& key) {
    by_row_[row].key = key;
    by_key_.emplace(key, row);
  }
  // Adds to the row's tags, replacing those with the same names.
  void AddTags(RowId row, const std::shared_ptr<const Tags>& tags) {
    std::shared_ptr<const Tags>& old = by_row_[row].tags;
    if (old == nullptr) {
      old = tags;
      return;
    }
    Tags merged = *tags;
    merged.insert(old->begin(), old->end());
    old = std::make_shared<const Tags>(std::move(merged));
  }
  void Remove(RowId row) {
    const auto it = by_row_.find(row);
    if (it == by_row_.end()) return;
    by_key_.erase(it->second.key);
    by_row_.erase(it);
  }

  // Whether a row has all of these tags.
  bool Match(RowId row, const Tags& wanted) const {
    if (wanted.empty()) return true;
    const std::shared_ptr<const Tags>& tags = Of(row).tags;
    if (tags == nullptr) return false;
    for (const auto& [name, value] : wanted) {
      const auto it = tags->find(name);
      if (it == tags->end() || it->second != value) return false;
    }
    return true;
  }

 private:
  absl::node_hash_map<RowId, Label> by_row_;
  // The map has copies of the keys, which usually fit inline: a lookup in a large map costs its cache misses.
  template <class Key, class Value>
  using LargeMap = absl::flat_hash_map<Key, Value, typename absl::flat_hash_map<Key, Value>::hasher,
                                       typename absl::flat_hash_map<Key, Value>::key_equal,
                                       HugePageAllocator<std::pair<const Key, Value>>>;
  LargeMap<std::string, RowId> by_key_;
};

}  // namespace tdock::dock
