// The columns of a table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "tdock/rows.h"

namespace tdock::dock {

// Columns are identified by their index, in the order in which they were first named. Not thread-safe.
class Schema {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  struct Column {
    ColumnSpec spec;
    // False for a column that a consumer named but that was never put.
    bool typed = false;
    int64_t ready_cells = 0;
    // The consumers that read it, have it in reads_optional, or write it.
    std::vector<uint32_t> readers;
    std::vector<uint32_t> optional_readers;
    std::vector<uint32_t> writers;
  };

  size_t size() const { return columns_.size(); }
  const Column& operator[](uint32_t index) const { return columns_[index]; }
  Column& operator[](uint32_t index) { return columns_[index]; }
  auto begin() const { return columns_.begin(); }
  auto end() const { return columns_.end(); }

  // kNone if there is no such column. A right guess saves the lookup.
  uint32_t Find(absl::string_view name, uint32_t guess = kNone) const {
    if (guess < columns_.size() && columns_[guess].spec.name == name) return guess;
    const auto it = by_name_.find(name);
    return it == by_name_.end() ? kNone : it->second;
  }
  // The column of this name; a new one is untyped.
  uint32_t Name(const std::string& name) {
    const auto [it, added] = by_name_.try_emplace(name, static_cast<uint32_t>(columns_.size()));
    if (added) columns_.emplace_back().spec.name = name;
    return it->second;
  }

 private:
  std::vector<Column> columns_;
  absl::flat_hash_map<std::string, uint32_t> by_name_;
};

}  // namespace tdock::dock
