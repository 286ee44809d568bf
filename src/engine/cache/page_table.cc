#include "engine/cache/page_table.h"

#include <algorithm>

#include "core/base/rng.h"

namespace tdock::engine {

PageTable::PageTable(int64_t pages, int64_t page_tokens) : total_(pages), page_tokens_(page_tokens) {}

int64_t PageTable::Add() {
  sequences_[next_];
  return next_++;
}

void PageTable::Remove(int64_t sequence) {
  const auto found = sequences_.find(sequence);
  // From the end, so that of pages that are kept the later ones are given up first.
  std::vector<int32_t> pages = std::move(found->second.pages);
  sequences_.erase(found);
  for (size_t i = pages.size(); i-- > 0;) Drop(pages[i]);
}

std::optional<int32_t> PageTable::Take() {
  if (free_.empty() && static_cast<int64_t>(pages_.size()) < total_) {
    pages_.emplace_back();
    return static_cast<int32_t>(pages_.size() - 1);
  }
  if (free_.empty()) {
    if (idle_.empty()) return std::nullopt;
    const int32_t page = idle_.front();
    idle_.pop_front();
    Withdraw(pages_[static_cast<size_t>(page)]);
    free_.push_back(page);
  }
  const int32_t page = free_.back();
  free_.pop_back();
  return page;
}

void PageTable::Hold(int32_t page) {
  Page& held = pages_[static_cast<size_t>(page)];
  if (held.references++ == 0 && held.published) idle_.erase(held.idle);
}

void PageTable::Drop(int32_t page) {
  Page& dropped = pages_[static_cast<size_t>(page)];
  if (--dropped.references > 0) return;
  if (dropped.published) {
    dropped.idle = idle_.insert(idle_.end(), page);
  } else {
    free_.push_back(page);
  }
}

void PageTable::Withdraw(Page& page) {
  by_key_.erase(page.key);
  page.published = false;
  page.tokens.clear();
}

bool PageTable::Reserve(int64_t sequence, int64_t length) {
  std::vector<int32_t>& pages = sequences_.at(sequence).pages;
  const int64_t missing = (length + page_tokens_ - 1) / page_tokens_ - static_cast<int64_t>(pages.size());
  if (missing > free() + kept()) return false;
  for (int64_t i = 0; i < missing; ++i) {
    pages.push_back(*Take());
    Hold(pages.back());
  }
  return true;
}

std::optional<PageTable::Forked> PageTable::Fork(int64_t sequence, int64_t length) {
  const auto full = static_cast<size_t>(length / page_tokens_);
  Forked forked{.sequence = Add()};
  const Sequence& source = sequences_.at(sequence);
  Sequence& copy = sequences_.at(forked.sequence);
  copy.pages.assign(source.pages.begin(), source.pages.begin() + static_cast<std::ptrdiff_t>(full));
  for (const int32_t page : copy.pages) Hold(page);
  copy.outdated = source.outdated;
  if (source.published <= full) {
    copy.published = source.published;
    copy.key = source.key;
  } else if (full > 0) {
    copy.published = full;
    copy.key = pages_[static_cast<size_t>(copy.pages.back())].key;
  }
  if (length % page_tokens_ != 0) {
    const int32_t from = source.pages[full];
    if (!Reserve(forked.sequence, length)) {
      Remove(forked.sequence);
      return std::nullopt;
    }
    forked.copy = Copy{.from = from, .to = sequences_.at(forked.sequence).pages.back()};
  }
  return forked;
}

uint64_t PageTable::KeyOf(uint64_t parent, std::span<const int32_t> tokens) const {
  uint64_t key = MixBits(parent + 1);
  for (const int32_t token : tokens) key = MixBits(key ^ static_cast<uint32_t>(token));
  return key;
}

int64_t PageTable::Share(int64_t sequence, std::span<const int32_t> tokens) {
  Sequence& sharing = sequences_.at(sequence);
  const auto size = static_cast<size_t>(page_tokens_);
  size_t shared = 0;
  for (; (shared + 1) * size <= tokens.size(); ++shared) {
    const std::span<const int32_t> content = tokens.subspan(shared * size, size);
    const uint64_t key = KeyOf(sharing.key, content);
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) break;
    const Page& page = pages_[static_cast<size_t>(found->second)];
    // Keys of different contents may be equal.
    if (page.parent != sharing.key || !std::equal(content.begin(), content.end(), page.tokens.begin())) break;
    sharing.pages.push_back(found->second);
    sharing.key = key;
    Hold(found->second);
  }
  sharing.published = shared;
  return static_cast<int64_t>(shared * size);
}

void PageTable::Publish(int64_t sequence, std::span<const int32_t> tokens) {
  Sequence& publishing = sequences_.at(sequence);
  if (publishing.outdated) return;
  const auto size = static_cast<size_t>(page_tokens_);
  for (; (publishing.published + 1) * size <= tokens.size(); ++publishing.published) {
    const std::span<const int32_t> content = tokens.subspan(publishing.published * size, size);
    const int32_t number = publishing.pages[publishing.published];
    const uint64_t parent = publishing.key;
    publishing.key = KeyOf(parent, content);
    Page& page = pages_[static_cast<size_t>(number)];
    page.key = publishing.key;
    // Of several pages with the same content, others share the first.
    if (page.published || !by_key_.try_emplace(publishing.key, number).second) continue;
    page.published = true;
    page.parent = parent;
    page.tokens.assign(content.begin(), content.end());
  }
}

void PageTable::Forget() {
  free_.insert(free_.end(), idle_.begin(), idle_.end());
  idle_.clear();
  for (Page& page : pages_) {
    if (page.published) Withdraw(page);
  }
  for (auto& [number, sequence] : sequences_) sequence.outdated = true;
}

int64_t PageTable::Unreachable() const {
  std::vector<bool> reached(pages_.size(), false);
  const auto reach = [&](const auto& pages) {
    for (const int32_t page : pages) reached[static_cast<size_t>(page)] = true;
  };
  reach(free_);
  reach(idle_);
  for (const auto& [number, sequence] : sequences_) reach(sequence.pages);
  return std::count(reached.begin(), reached.end(), false);
}

}  // namespace tdock::engine
