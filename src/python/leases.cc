#include "python/leases.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace tdock::python {

void Leases::Add(const std::string& partition, const Taken& taken) {
  if (held_.size() >= look_at_) {
    const absl::Time now = absl::Now();
    std::erase_if(held_, [&](const auto& one) { return one.second.expires < now; });
    look_at_ = std::max(look_at_, 2 * held_.size());
  }
  held_[{partition, taken.lease}] = {.rows = taken.rows.size(), .expires = taken.expires};
}

void Leases::Renew(const std::string& partition, LeaseId lease, absl::Time expires) {
  if (const auto found = held_.find({partition, lease}); found != held_.end()) found->second.expires = expires;
}

void Leases::End(const std::string& partition, LeaseId lease, const std::vector<RowId>& rows) {
  const auto found = held_.find({partition, lease});
  if (found == held_.end()) return;
  std::vector<RowId> distinct = rows;
  std::ranges::sort(distinct);
  const auto ended = static_cast<size_t>(std::ranges::unique(distinct).begin() - distinct.begin());
  if (rows.empty() || ended >= found->second.rows) {
    held_.erase(found);
  } else {
    found->second.rows -= ended;
  }
}

void Leases::EndAll(const std::string& partition) {
  std::erase_if(held_, [&](const auto& one) { return one.first.first == partition; });
}

std::vector<LeaseRequest> Leases::Requests() const {
  std::vector<LeaseRequest> requests;
  for (const auto& [name, held] : held_) requests.push_back({.partition = name.first, .lease = name.second});
  return requests;
}

}  // namespace tdock::python
