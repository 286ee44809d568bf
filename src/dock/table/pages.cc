#include "dock/table/pages.h"

#include <algorithm>

#include "core/base/status.h"

namespace tdock::dock {

std::optional<Place> Pages::Find(RowId row) const {
  if (last_ == nullptr || row - last_->first >= Page::kRows) {
    const auto it = pages_.find(row / Page::kRows);
    if (it == pages_.end()) return std::nullopt;
    last_ = it->second.get();
  }
  const uint64_t slot = row - last_->first;
  if (!last_->Has(slot)) return std::nullopt;
  return Place{last_, slot};
}

Place Pages::At(RowId row) const {
  const std::optional<Place> place = Find(row);
  TDOCK_CHECK(place.has_value(), "a row that is not there");
  return *place;
}

std::vector<Place> Pages::Locate(std::span<const RowId> rows) const {
  std::vector<Place> places;
  places.reserve(rows.size());
  // Does not check whether the rows exist: for scattered rows that would cost one more cache miss each.
  Page* page = nullptr;
  for (RowId row : rows) {
    if (page == nullptr || row - page->first >= Page::kRows) {
      const auto it = pages_.find(row / Page::kRows);
      TDOCK_CHECK(it != pages_.end(), "a row that is not there");
      page = it->second.get();
    }
    places.push_back({page, row - page->first});
  }
  return places;
}

Page& Pages::PageOfNextRow(bool& is_new) {
  if (last_ != nullptr && next_row_ - last_->first < Page::kRows) return *last_;
  std::unique_ptr<Page>& page = pages_[next_row_ / Page::kRows];
  is_new = page == nullptr;
  if (is_new) {
    page = std::make_unique<Page>();
    page->first = next_row_ - next_row_ % Page::kRows;
    order_.insert(order_.end(), next_row_ / Page::kRows);
  }
  last_ = page.get();
  return *page;
}

void Pages::Occupy(Page& page, uint64_t slot, int64_t count) {
  for (uint64_t i = slot; i < slot + static_cast<uint64_t>(count); ++i) page.present[i / 64] |= uint64_t{1} << i % 64;
  page.live += count;
  rows_ += count;
  next_row_ += static_cast<RowId>(count);
}

void Pages::Remove(const Place& place) {
  Page& page = *place.page;
  const uint64_t others = ~(uint64_t{1} << place.slot % 64);
  page.present[place.slot / 64] &= others;
  page.dropped[place.slot / 64] &= others;
  --rows_;
  // Future rows may still get ids of this page.
  if (--page.live > 0 || next_row_ < page.first + Page::kRows) return;
  if (last_ == &page) last_ = nullptr;
  const uint64_t number = page.first / Page::kRows;
  order_.erase(number);
  pages_.erase(number);
}

}  // namespace tdock::dock
