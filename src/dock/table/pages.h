// The rows of a table, by id.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "dock/table/page.h"

namespace tdock::dock {

// A page exists while it has rows, or may still get some. Not thread-safe.
class Pages {
 public:
  std::optional<Place> Find(RowId row) const;
  // The row must exist.
  Place At(RowId row) const;
  std::vector<Place> Locate(std::span<const RowId> rows) const;

  // The id of the next new row.
  RowId next_row() const { return next_row_; }
  int64_t rows() const { return rows_; }

  // Creates the next `count` rows. Calls `start(page)` for each new page, then `visit(page, slot, count)` for the rows
  // of each page.
  template <class Start, class Visit>
  void Append(int64_t count, Start start, Visit visit) {
    while (count > 0) {
      bool is_new = false;
      Page& page = PageOfNextRow(is_new);
      if (is_new) start(page);
      const uint64_t slot = next_row_ - page.first;
      const int64_t here = std::min(count, static_cast<int64_t>(Page::kRows - slot));
      Occupy(page, slot, here);
      visit(page, slot, here);
      count -= here;
    }
  }
  void Remove(const Place& place);
  // There are no new rows below this one, which is not below the next.
  void SkipTo(RowId row) { next_row_ = row; }

  template <class Visit>
  void ForEachPage(Visit visit) {
    for (auto& [number, page] : pages_) visit(*page);
  }
  // Visits the rows from `first` on, ascending, until `visit(place)` returns false.
  template <class Visit>
  void ForEachRow(RowId first, Visit visit) const {
    for (auto it = order_.lower_bound(first / Page::kRows); it != order_.end(); ++it) {
      Page& page = *pages_.at(*it);
      for (size_t word = 0; word < page.present.size(); ++word) {
        for (uint64_t left = page.present[word]; left != 0; left &= left - 1) {
          const Place place{&page, word * 64 + static_cast<uint64_t>(std::countr_zero(left))};
          if (place.row() >= first && !visit(place)) return;
        }
      }
    }
  }

 private:
  Page& PageOfNextRow(bool& is_new);
  void Occupy(Page& page, uint64_t slot, int64_t count);

  RowId next_row_ = 0;
  int64_t rows_ = 0;
  // By page number, row / Page::kRows; and those numbers in order.
  absl::flat_hash_map<uint64_t, std::unique_ptr<Page>> pages_;
  absl::btree_set<uint64_t> order_;
  mutable Page* last_ = nullptr;  // the page that was found last
};

}  // namespace tdock::dock
