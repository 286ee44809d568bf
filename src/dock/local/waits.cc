#include "dock/local/waits.h"

#include <algorithm>

namespace tdock::dock {

void Waits::Add(const std::shared_ptr<Waiter>& waiter) {
  if (waiter->arrival_ == 0) waiter->arrival_ = ++arrivals_;
  // If memory runs out, it is not queued.
  if (const auto* const rows = std::get_if<AwaitedRows>(&waiter->awaited)) {
    if (takes_.size() <= rows->consumer) takes_.resize(rows->consumer + 1);
    Takes& takes = takes_[rows->consumer];
    takes.ranks[rows->rank].waiting.emplace(KeyOf(*waiter), waiter);
    ++takes.waiting;
  } else {
    (std::holds_alternative<AwaitedCell>(waiter->awaited) ? fetches_ : puts_).emplace(waiter->arrival_, waiter);
  }
  waiter->waiting = true;
}

void Waits::Leave(Waiter& waiter) {
  if (const auto* const rows = std::get_if<AwaitedRows>(&waiter.awaited)) {
    if (takes_.size() <= rows->consumer) return;
    Takes& takes = takes_[rows->consumer];
    const auto it = takes.ranks.find(rows->rank);
    if (it == takes.ranks.end()) return;
    Rank& rank = it->second;
    rank.promised -= std::exchange(waiter.promised_, 0);
    if (waiter.waiting) {
      --takes.waiting;
      if (takes.expiry_watcher == &waiter) takes.expiry_watcher = nullptr;
      rank.waiting.erase(KeyOf(waiter));
    }
    // Empty ranks are removed, because every change iterates over all of them.
    if (rank.waiting.empty() && rank.promised == 0) takes.ranks.erase(it);
  } else if (waiter.waiting && std::holds_alternative<AwaitedCell>(waiter.awaited)) {
    fetches_.erase(waiter.arrival_);
  }
  waiter.waiting = false;
}

void Waits::End(Waiter& waiter) {
  if (std::holds_alternative<AwaitedRoom>(waiter.awaited)) puts_.erase(waiter.arrival_);
}

void Waits::Wake(Takes& takes, Rank& rank, std::map<Key, std::shared_ptr<Waiter>>::iterator it, int64_t promise,
                 WakeList& wake) {
  Waiter& waiter = *it->second;
  wake.push_back(it->second);
  waiter.waiting = false;
  waiter.promised_ = promise;
  rank.promised += promise;
  --takes.waiting;
  if (takes.expiry_watcher == &waiter) takes.expiry_watcher = nullptr;
  rank.waiting.erase(it);
}

void Waits::Wake(Waiter& waiter, WakeList& wake) {
  if (!waiter.waiting) return;
  if (const auto* const rows = std::get_if<AwaitedRows>(&waiter.awaited)) {
    Takes& takes = takes_[rows->consumer];
    Rank& rank = takes.ranks[rows->rank];
    Wake(takes, rank, rank.waiting.find(KeyOf(waiter)), 0, wake);
    return;
  }
  if (std::holds_alternative<AwaitedCell>(waiter.awaited)) {
    const auto it = fetches_.find(waiter.arrival_);
    wake.push_back(it->second);
    fetches_.erase(it);
  } else {
    wake.push_back(puts_.at(waiter.arrival_));
  }
  waiter.waiting = false;
}

void Waits::WakeTakes(uint32_t consumer, WakeList& wake) {
  if (!AnyTakes(consumer)) return;
  Takes& takes = takes_[consumer];
  for (auto& [number, rank] : takes.ranks) {
    while (!rank.waiting.empty()) Wake(takes, rank, rank.waiting.begin(), 0, wake);
  }
}

void Waits::WakeServed(uint32_t consumer, absl::FunctionRef<int64_t(int32_t)> takeable, WakeList& wake) {
  if (!AnyTakes(consumer)) return;
  Takes& takes = takes_[consumer];
  for (auto& [number, rank] : takes.ranks) {
    while (!rank.waiting.empty()) {
      const auto it = rank.waiting.begin();
      const int64_t left = takeable(number) - rank.promised;
      const AwaitedRows& awaited = std::get<AwaitedRows>(it->second->awaited);
      if (awaited.least > left) break;
      Wake(takes, rank, it, std::min(awaited.max, left), wake);
    }
  }
}

void Waits::WakeUnsatisfiable(uint32_t consumer, absl::FunctionRef<bool(int32_t, int64_t)> is_unsatisfiable,
                              WakeList& wake) {
  if (!AnyTakes(consumer)) return;
  Takes& takes = takes_[consumer];
  for (auto& [number, rank] : takes.ranks) {
    while (!rank.waiting.empty()) {
      const auto it = std::prev(rank.waiting.end());
      if (!is_unsatisfiable(number, it->first.first)) break;
      Wake(takes, rank, it, 0, wake);
    }
  }
}

Waiter* Waits::ChooseExpiryWatcher(uint32_t consumer) {
  if (!AnyTakes(consumer)) return nullptr;
  Takes& takes = takes_[consumer];
  // The one that would be served first.
  for (auto it = takes.ranks.begin(); it != takes.ranks.end() && takes.expiry_watcher == nullptr; ++it) {
    if (!it->second.waiting.empty()) takes.expiry_watcher = it->second.waiting.begin()->second.get();
  }
  return takes.expiry_watcher;
}

void Waits::WakeFetches(absl::FunctionRef<bool(const AwaitedCell&)> is_over, WakeList& wake) {
  for (auto it = fetches_.begin(); it != fetches_.end();) {
    const auto fetch = it++;
    if (!is_over(std::get<AwaitedCell>(fetch->second->awaited))) continue;
    wake.push_back(fetch->second);
    fetch->second->waiting = false;
    fetches_.erase(fetch);
  }
}

void Waits::WakePuts(absl::FunctionRef<bool(AwaitedRoom&, bool)> is_over, WakeList& wake) {
  bool first = true;
  for (const auto& [arrival, put] : puts_) {
    if (put->waiting && is_over(std::get<AwaitedRoom>(put->awaited), first)) {
      wake.push_back(put);
      put->waiting = false;
    }
    first = false;
  }
}

}  // namespace tdock::dock
