// A partition written as plainly as it can be: the specification that the real one is checked against. It scans
// everything on every call. For tests.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "dock/testing/slow_versions.h"
#include "tdock/dock.h"

namespace tdock::dock {

// Cells hold numbers; what column type they stand for is the driver's business. Not thread-safe.
class SlowDock : public SlowVersions {
 public:
  // Cells of `rows`, or if it is empty, new rows. All but the batch.
  struct AnyPut : FillRequest {
    int64_t new_rows = 0;
    std::vector<GroupId> groups = {};
    int64_t group_size = 0;
    std::vector<std::string> keys = {};
  };
  struct SlowPut {
    std::map<std::string, std::vector<int64_t>> columns;
    // Of those that are lists, how many items each cell has.
    std::map<std::string, std::vector<int64_t>> lengths;
    AnyPut request;
    int64_t count = 0;
  };

  explicit SlowDock(const PartitionOptions& options) : SlowVersions(options) {}

  void Register(const ConsumerOptions& options) {
    SlowConsumer& consumer = consumers_[options.name];
    consumer.options = options;
    consumer.done = dropped_;
  }

  Refusals CheckDropConsumer(const std::string& name) const {
    const bool retains = std::find(retain_for_.begin(), retain_for_.end(), name) != retain_for_.end();
    return HasConsumer(name) || retains ? Refusals() : Refusals{Code::kNotFound};
  }
  void DropConsumer(const std::string& name) {
    std::erase(retain_for_, name);
    consumers_.erase(name);
    std::erase_if(leases_, [&](const auto& lease) { return lease.second.consumer == name; });
    ReleaseRows(AllRows());
  }

  Refusals CheckPut(const SlowPut& put) const {
    const AnyPut& request = put.request;
    Refusals refusals;
    const bool completes = request.lease != kNoLease && !request.keep && !request.partial;
    if (request.partial && request.overwrite) refusals.insert(Code::kInvalidArgument);
    if (request.step != kNoStep && !completes) {
      refusals.insert(Code::kInvalidArgument);
    }
    if (completes) CheckStep(request.lease, request.step, refusals);
    const bool only_tags = !request.rows.empty() && !request.tags.empty();
    if (put.count == 0 || (put.columns.empty() && request.new_rows == 0 && !only_tags)) {
      refusals.insert(Code::kInvalidArgument);
    }
    if (request.tags.size() > 1 && static_cast<int64_t>(request.tags.size()) != put.count) {
      refusals.insert(Code::kInvalidArgument);
    }
    for (size_t i = 0; i < request.keys.size(); ++i) {
      if (request.keys[i].empty()) continue;
      if (FindKey(request.keys[i]).has_value()) refusals.insert(Code::kAlreadyExists);
      const auto others = std::span(request.keys).first(i);
      if (std::find(others.begin(), others.end(), request.keys[i]) != others.end()) {
        refusals.insert(Code::kInvalidArgument);
      }
    }
    if (request.rows.empty()) {
      if (request.lease != kNoLease) refusals.insert(Code::kInvalidArgument);
      if (sealed_) refusals.insert(Code::kFailedPrecondition);
      CheckGroups(put, refusals);
      if (options_.max_rows > 0) CheckBudget(put, refusals);
      return refusals;
    }
    if (static_cast<int64_t>(request.rows.size()) != put.count) refusals.insert(Code::kInvalidArgument);
    if (request.keep && request.lease == kNoLease) refusals.insert(Code::kInvalidArgument);
    if (request.lease != kNoLease) {
      CheckLease(request.lease, request.rows, refusals);
      if (const auto it = leases_.find(request.lease); it != leases_.end()) {
        const auto& writes = consumers_.at(it->second.consumer).options.writes;
        for (const auto& [name, values] : put.columns) {
          if (std::find(writes.begin(), writes.end(), name) == writes.end()) refusals.insert(Code::kInvalidArgument);
        }
      }
    }
    CheckRows(request.rows, refusals);
    CheckEpochs(request, refusals);
    for (RowId row : request.rows) {
      const auto it = rows_.find(row);
      if (it == rows_.end() || request.overwrite) continue;
      for (const auto& [name, values] : put.columns) {
        if (it->second.cells.contains(name)) refusals.insert(Code::kAlreadyExists);
      }
    }
    return refusals;
  }

  std::vector<RowId> Put(const SlowPut& put) {
    const AnyPut& request = put.request;
    std::vector<RowId> ids = request.rows;
    for (int64_t i = 0; request.rows.empty() && i < put.count; ++i) {
      ids.push_back(next_row_++);
      SlowRow& row = rows_[ids.back()];
      if (!request.keys.empty()) row.key = request.keys[static_cast<size_t>(i)];
      if (request.groups.empty()) continue;
      row.group = request.groups[static_cast<size_t>(i)];
      const auto [it, started] = groups_.try_emplace(row.group);
      if (started)
        it->second = {.size = SizeOfNewGroups(request), .arrived = 0, .leader = ids.back(), .ordinal = groups_begun_++};
      ++it->second.arrived;
    }
    for (size_t i = 0; i < ids.size() && !request.tags.empty(); ++i) {
      const Tags& tags = request.tags[request.tags.size() == 1 ? 0 : i];
      for (const auto& [name, value] : tags) rows_[ids[i]].tags[name] = value;
    }
    for (const auto& [name, values] : put.columns) {
      const auto lengths = put.lengths.find(name);
      for (size_t i = 0; i < ids.size(); ++i) {
        SlowRow& row = rows_[ids[i]];
        SlowCell old;
        old.is_list = lengths != put.lengths.end();
        const auto it = row.partial_cells.find(name);
        if (it != row.partial_cells.end() && !request.overwrite) old = it->second;
        row.partial_cells.erase(name);
        // Nobody but the writer has anything of one that is partial.
        (request.partial ? row.partial_cells : row.cells)[name] =
            old.Continued(values[i], old.is_list ? lengths->second[i] : 1, request.weights_version);
        (request.partial ? row.partial_cells : row.cells)[name].writer = ConsumerOf(request.lease);
      }
    }
    if (request.lease != kNoLease && !request.keep) {
      for (RowId row : ids) {
        if (!request.partial) break;
        GrowOlder(row);
        ++consumers_.at(leases_.at(request.lease).consumer).unfinished;
      }
      request.partial ? Release(request.lease, ids) : Complete(request.lease, ids, request.step);
    }
    return ids;
  }

  // What a take has to do: hand out `count` rows or groups, or fail.
  struct TakePlan {
    Refusals refusals;
    int64_t count = 0;
  };
  TakePlan CheckTake(const std::string& name, int32_t rank, int64_t min, int64_t max) const {
    const SlowConsumer& consumer = consumers_.at(name);
    TakePlan plan;
    if (min < 1 || max < min || rank < 0 || rank >= consumer.options.ranks) {
      plan.refusals.insert(Code::kInvalidArgument);
      return plan;
    }
    if (sealed_) {
      if (AllDone(consumer, rank)) {
        plan.refusals.insert(Code::kOutOfRange);
        return plan;
      }
      const int64_t possible = MayStillCome(consumer, rank);
      if (possible == 0 && Leased(name) == 0) {
        plan.refusals.insert(Code::kFailedPrecondition);
        return plan;
      }
      min = std::max<int64_t>(std::min(min, possible), 1);
    }
    const int64_t takeable = static_cast<int64_t>(Takeable(name, rank).size());
    if (takeable < min) plan.refusals.insert(Code::kDeadlineExceeded);
    plan.count = std::min(max, takeable);
    return plan;
  }

  void Take(const std::string& consumer, LeaseId lease, const std::vector<RowId>& rows, absl::Time now) {
    if (consumers_.at(consumer).options.at_most_once) {
      Finish(consumers_.at(consumer), rows, kNoStep);
      return;
    }
    leases_[lease] = {consumer, now + consumers_.at(consumer).options.lease_duration, {rows.begin(), rows.end()}, now};
    last_lease_ = lease;
  }

  Refusals CheckLease(LeaseId lease, const std::vector<RowId>& rows) const {
    Refusals refusals;
    CheckLease(lease, rows, refusals);
    CheckRows(rows, refusals);
    return refusals;
  }

  Refusals CheckComplete(LeaseId lease, const std::vector<RowId>& rows, int64_t step) const {
    Refusals refusals = CheckLease(lease, rows);
    CheckStep(lease, step, refusals);
    return refusals;
  }
  void Complete(LeaseId lease, const std::vector<RowId>& rows, int64_t step) {
    for (RowId row : rows) leases_.at(lease).rows.erase(row);
    Finish(consumers_.at(leases_.at(lease).consumer), rows, step);
    DropEmptyLeases();
  }

  Refusals CheckCommit(const std::string& name, int64_t step, int64_t version) const {
    Refusals refusals = CheckCheckpointed(name, step);
    if (version != kNoWeightsVersion) refusals.insert(Code::kInvalidArgument);
    return refusals;
  }
  void Commit(const std::string& name, int64_t step) {
    SlowConsumer& consumer = consumers_.at(name);
    consumer.committed_step = std::max(consumer.committed_step, step);
    std::erase_if(consumer.uncommitted, [&](const auto& row_and_step) { return row_and_step.second <= step; });
    ReleaseRows(AllRows());
  }
  Refusals CheckRollback(const std::string& name, int64_t step, int64_t version) const {
    Refusals refusals = CheckCheckpointed(name, step);
    if (version < kNoWeightsVersion) refusals.insert(Code::kInvalidArgument);
    if (published_ != kNoWeightsVersion && version > published_) refusals.insert(Code::kFailedPrecondition);
    if (version != kNoWeightsVersion) refusals.merge(JudgeForRollback(version).refusals);
    if (step < consumers_.at(name).committed_step) refusals.insert(Code::kFailedPrecondition);
    return refusals;
  }
  void Rollback(const std::string& name, int64_t step, int64_t version) {
    std::erase_if(leases_, [&](const auto& lease) { return lease.second.consumer == name; });
    SlowConsumer& consumer = consumers_.at(name);
    std::erase_if(consumer.uncommitted, [&](const auto& row_and_step) {
      if (row_and_step.second > step) consumer.done.erase(row_and_step.first);
      return row_and_step.second > step;
    });
    if (version != kNoWeightsVersion) {
      const StaleRows later = JudgeForRollback(version);
      Drop({later.dropped.begin(), later.dropped.end()});
      SendBack(later, "");
      published_ = version;
    }
  }

  void Release(LeaseId lease, const std::vector<RowId>& rows) {
    for (RowId row : rows) leases_.at(lease).rows.erase(row);
    DropEmptyLeases();
  }

  void Expire(absl::Time now) {
    for (auto& [id, lease] : leases_) {
      if (lease.expires > now) continue;
      SlowConsumer& consumer = consumers_.at(lease.consumer);
      for (RowId row : lease.rows) {
        if (++consumer.redeliveries[row] == consumer.options.max_deliveries) consumer.quarantined.insert(row);
        ++consumer.expired;
      }
      lease.rows.clear();
    }
    DropEmptyLeases();
  }

  // As if all rows had been released.
  void EndLeases() { leases_.clear(); }

  void Renew(LeaseId lease, absl::Time now) {
    leases_.at(lease).expires = now + consumers_.at(leases_.at(lease).consumer).options.lease_duration;
  }

  void Drop(const std::vector<RowId>& rows) {
    for (RowId row : rows) {
      if (!retain_for_.empty()) {
        Remove(row);
        continue;
      }
      dropped_.insert(row);
      for (auto& [name, consumer] : consumers_) {
        consumer.Forget(row);
        consumer.done.insert(row);
      }
      for (auto& [id, lease] : leases_) lease.rows.erase(row);
    }
    DropEmptyLeases();
  }

  // Before a take hands them out.
  void PutAside(const StaleRows& stale, const std::string& name) {
    consumers_.at(name).stale_dropped += static_cast<int64_t>(stale.dropped.size());
    Drop({stale.dropped.begin(), stale.dropped.end()});
    SendBack(stale, name);
  }

  Refusals CheckRequeue(const std::string& name, const std::vector<RowId>& rows) const {
    Refusals refusals;
    CheckRows(rows, refusals);
    for (RowId row : rows) {
      if (!consumers_.at(name).quarantined.contains(row)) refusals.insert(Code::kFailedPrecondition);
    }
    return refusals;
  }
  void Requeue(const std::string& name, const std::vector<RowId>& rows) {
    for (RowId row : rows) consumers_.at(name).Forget(row);
  }
  std::vector<RowId> Quarantined(const std::string& name) const {
    const std::set<RowId>& rows = consumers_.at(name).quarantined;
    return {rows.begin(), rows.end()};
  }

  Refusals CheckSeal() const {
    for (const auto& [id, group] : groups_) {
      if (group.arrived < group.size && !sealed_) return {Code::kFailedPrecondition};
    }
    return {};
  }
  void Seal() { sealed_ = true; }

  Refusals CheckRowsThere(const std::vector<RowId>& rows) const {
    Refusals refusals;
    CheckRows(rows, refusals);
    return refusals;
  }
  void Clear(const std::vector<RowId>& rows) {
    for (RowId row : rows) {
      if (rows_.at(row).group != kNoGroup && !sealed_) --groups_.at(rows_.at(row).group).arrived;
      Remove(row);
    }
    DropEmptyLeases();
  }
  void ForgetGroup(GroupId group) { groups_.erase(group); }
  void ForgetEverything() {
    groups_.clear();
    sealed_ = false;
  }

 private:
  Refusals CheckCheckpointed(const std::string& name, int64_t step) const {
    return consumers_.at(name).options.checkpointed && step >= kNoStep ? Refusals() : Refusals{Code::kInvalidArgument};
  }

  int64_t SizeOfNewGroups(const AnyPut& request) const {
    return request.group_size > 0 ? request.group_size : options_.group_size;
  }

  void CheckGroups(const SlowPut& put, Refusals& refusals) const {
    const std::vector<GroupId>& groups = put.request.groups;
    if (put.request.group_size < 0) refusals.insert(Code::kInvalidArgument);
    if (groups.empty()) {
      if (SizeOfNewGroups(put.request) != 1) refusals.insert(Code::kInvalidArgument);
      return;
    }
    if (static_cast<int64_t>(groups.size()) != put.count) refusals.insert(Code::kInvalidArgument);
    for (GroupId id : groups) {
      const auto it = groups_.find(id);
      const int64_t size = it == groups_.end() ? SizeOfNewGroups(put.request) : it->second.size;
      const int64_t arrived = it == groups_.end() ? 0 : it->second.arrived;
      if (id == kNoGroup || (put.request.group_size > 0 && put.request.group_size != size) ||
          arrived + std::count(groups.begin(), groups.end(), id) > size) {
        refusals.insert(Code::kInvalidArgument);
      }
    }
  }

  void CheckEpochs(const AnyPut& request, Refusals& refusals) const {
    if (!request.epochs.empty() && request.epochs.size() != request.rows.size()) {
      refusals.insert(Code::kInvalidArgument);
    }
    for (size_t i = 0; i < std::min(request.epochs.size(), request.rows.size()); ++i) {
      const auto it = rows_.find(request.rows[i]);
      if (it != rows_.end() && it->second.epoch != request.epochs[i]) refusals.insert(Code::kFailedPrecondition);
    }
  }

  // In rows; groups claim all their rows with the first.
  void CheckBudget(const SlowPut& put, Refusals& refusals) const {
    int64_t claimed = put.request.groups.empty() ? put.count : 0;
    for (GroupId id : std::set<GroupId>(put.request.groups.begin(), put.request.groups.end())) {
      if (!groups_.contains(id)) claimed += SizeOfNewGroups(put.request);
    }
    int64_t admitted = static_cast<int64_t>(rows_.size());
    for (const auto& [id, group] : groups_) admitted += group.size - group.arrived;
    if (claimed == 0) return;
    if (claimed > options_.max_rows) refusals.insert(Code::kResourceExhausted);
    if (admitted + claimed <= options_.max_rows) return;
    refusals.insert(Code::kDeadlineExceeded);
    for (const std::string& name : retain_for_) {
      if (!consumers_.contains(name)) continue;
      const size_t uncommitted = consumers_.at(name).uncommitted.size();
      const bool all = uncommitted > 0 && uncommitted == rows_.size();
      if (all || static_cast<int64_t>(uncommitted) + claimed > options_.max_rows) {
        refusals.insert(Code::kFailedPrecondition);
      }
    }
  }

  void CheckLease(LeaseId lease, const std::vector<RowId>& rows, Refusals& refusals) const {
    if (lease == kNoLease || lease > last_lease_) refusals.insert(Code::kNotFound);
    const auto it = leases_.find(lease);
    if (it == leases_.end()) {
      refusals.insert(Code::kFailedPrecondition);
      return;
    }
    for (RowId row : rows) {
      if (!it->second.rows.contains(row)) refusals.insert(Code::kFailedPrecondition);
    }
  }

  void CheckStep(LeaseId lease, int64_t step, Refusals& refusals) const {
    const auto it = leases_.find(lease);
    if (it == leases_.end()) return;
    const SlowConsumer& consumer = consumers_.at(it->second.consumer);
    if (consumer.options.checkpointed ? step < 0 : step != kNoStep) refusals.insert(Code::kInvalidArgument);
    if (consumer.options.checkpointed && step <= consumer.committed_step) refusals.insert(Code::kFailedPrecondition);
  }

  void Finish(SlowConsumer& consumer, const std::vector<RowId>& rows, int64_t step) {
    for (RowId row : rows) {
      consumer.done.insert(row);
      if (step != kNoStep) consumer.uncommitted[row] = step;
      consumer.redeliveries.erase(row);
      ++consumer.completed;
    }
    ReleaseRows(rows);
  }

  // Removes those that need not outlive anybody any more.
  void ReleaseRows(const std::vector<RowId>& rows) {
    for (RowId row : rows) {
      const auto done_for = [&](const std::string& name) {
        return consumers_.contains(name) && consumers_.at(name).done.contains(row) &&
               !consumers_.at(name).uncommitted.contains(row);
      };
      if (!retain_for_.empty() && std::all_of(retain_for_.begin(), retain_for_.end(), done_for)) Remove(row);
    }
    DropEmptyLeases();
  }

  bool AllDone(const SlowConsumer& consumer, int32_t rank) const {
    return std::all_of(rows_.begin(), rows_.end(), [&](const auto& id_and_row) {
      const auto& [id, row] = id_and_row;
      const bool grouped = consumer.options.unit == Unit::kGroup && row.group != kNoGroup;
      const uint64_t ordinal = grouped ? groups_.at(row.group).ordinal : id;
      return consumer.done.contains(id) || !IsFor(consumer, rank, ordinal);
    });
  }

  int64_t MayStillCome(const SlowConsumer& consumer, int32_t rank) const {
    int64_t units = 0;
    for (const auto& [id, row] : rows_) {
      if (!IsFor(consumer, rank, id)) continue;
      if (consumer.options.unit == Unit::kRow || row.group == kNoGroup) units += !consumer.IsOut(id);
    }
    for (const auto& [id, group] : groups_) {
      if (consumer.options.unit == Unit::kRow) break;
      if (!IsFor(consumer, rank, group.ordinal)) continue;
      const std::vector<RowId> rows = RowsOf(id);
      units += static_cast<int64_t>(rows.size()) == group.arrived &&
               std::none_of(rows.begin(), rows.end(), [&](RowId row) { return consumer.IsOut(row); });
    }
    return units;
  }

  void Remove(RowId row) {
    const GroupId group = rows_.at(row).group;
    rows_.erase(row);
    dropped_.erase(row);
    for (auto& [name, consumer] : consumers_) consumer.Forget(row);
    for (auto& [id, lease] : leases_) lease.rows.erase(row);
    const auto it = groups_.find(group);
    if (it == groups_.end() || !RowsOf(group).empty()) return;
    if (it->second.arrived == 0 || it->second.arrived == it->second.size) groups_.erase(it);
  }

  void DropEmptyLeases() {
    std::erase_if(leases_, [](const auto& lease) { return lease.second.rows.empty(); });
  }
};

}  // namespace tdock::dock
