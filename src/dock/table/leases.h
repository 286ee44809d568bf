// The leases of a table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "tdock/dock.h"

namespace tdock::dock {

struct Lease {
  LeaseId id = kNoLease;
  uint32_t consumer = 0;
  absl::Time at;
  absl::Time expires;
  // The rows that were taken; the lease still holds those whose state says so.
  std::vector<RowId> rows;
  int64_t held = 0;

  // The number by which pages refer to it.
  static uint32_t KeyOf(LeaseId id) { return static_cast<uint32_t>(id); }
  uint32_t key() const { return KeyOf(id); }
};

// Not thread-safe.
class Leases {
 public:
  // Ids begin after `last`.
  explicit Leases(LeaseId last = kNoLease) : last_(last) {}

  // The id of the last lease that was added.
  LeaseId last() const { return last_; }
  // No lease gets this id or a lower one any more.
  void SkipTo(LeaseId last) { last_ = std::max(last_, last); }
  // The id of the next lease. Its page number is not in use.
  LeaseId Next() const {
    LeaseId id = last_ + 1;
    while (by_key_.contains(Lease::KeyOf(id)) || Lease::KeyOf(id) == 0) ++id;
    return id;
  }

  // Null if it is over or never existed.
  const Lease* Find(LeaseId id) const {
    const auto it = by_key_.find(Lease::KeyOf(id));
    return it != by_key_.end() && it->second.id == id ? &it->second : nullptr;
  }
  // It must exist.
  const Lease& ByKey(uint32_t key) const { return by_key_.find(key)->second; }
  Lease& ByKey(uint32_t key) { return by_key_.find(key)->second; }

  // When the next one expires.
  absl::Time NextExpiry() const { return expiries_.empty() ? absl::InfiniteFuture() : expiries_.begin()->first; }
  // The lease that is the next to expire, if its time has come.
  std::optional<LeaseId> NextExpired(absl::Time now) const {
    if (expiries_.empty() || expiries_.begin()->first > now) return std::nullopt;
    return expiries_.begin()->second;
  }

  void Add(Lease lease) {
    last_ = lease.id;
    if (lease.expires != absl::InfiniteFuture()) expiries_.emplace(lease.expires, lease.id);
    by_key_[lease.key()] = std::move(lease);
  }
  void Renew(LeaseId id, absl::Time expires) {
    Lease& lease = ByKey(Lease::KeyOf(id));
    expiries_.erase({lease.expires, id});
    lease.expires = expires;
    if (expires != absl::InfiniteFuture()) expiries_.emplace(expires, id);
  }
  void Remove(const Lease& lease) {
    expiries_.erase({lease.expires, lease.id});
    by_key_.erase(lease.key());
  }

 private:
  LeaseId last_;
  absl::flat_hash_map<uint32_t, Lease> by_key_;
  absl::btree_set<std::pair<absl::Time, LeaseId>> expiries_;
};

}  // namespace tdock::dock
