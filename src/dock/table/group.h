// Prompts and their rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "dock/table/id_set.h"
#include "tdock/rows.h"

namespace tdock {

// The rows of a group that are there, ascending. They mostly go in their order, which costs no more than in any other.
class GroupRows {
 public:
  const RowId* begin() const { return rows_.data() + gone_; }
  const RowId* end() const { return rows_.data() + rows_.size(); }
  size_t size() const { return rows_.size() - gone_; }
  bool empty() const { return size() == 0; }

  // One behind all others.
  void Add(RowId row) { rows_.push_back(row); }
  // One that is there.
  void Remove(RowId row) {
    const auto it = std::lower_bound(rows_.begin() + static_cast<ptrdiff_t>(gone_), rows_.end(), row);
    if (it != rows_.begin() + static_cast<ptrdiff_t>(gone_)) {
      rows_.erase(it);
    } else if (++gone_ > rows_.size() / 2) {
      rows_.erase(rows_.begin(), rows_.begin() + static_cast<ptrdiff_t>(gone_));
      gone_ = 0;
    }
  }

 private:
  absl::InlinedVector<RowId, 8> rows_;
  size_t gone_ = 0;  // the first of them
};

// A prompt's rows, when there can be more than one.
struct Group {
  GroupId id = kNoGroup;
  int64_t size = 0;
  // The rows that were put, less those that may be put again.
  int64_t arrived = 0;
  // The id of its first row: where it stands among others. That row itself may be gone.
  RowId leader = 0;
  // The highest that a row of it had.
  int32_t age = 0;
  // How many groups were begun before it.
  uint64_t ordinal = 0;
  // The rows that are there, ascending.
  GroupRows rows;
  // For each consumer of groups, how many of the rows are in these states.
  struct Counts {
    int32_t ready = 0;
    int32_t quarantined = 0;
    int32_t done = 0;
  };
  absl::InlinedVector<Counts, 2> counts;

  int64_t rows_here() const { return static_cast<int64_t>(rows.size()); }
  bool complete() const { return arrived == size; }
  // Rows are gone for good: no consumer can take it as a whole any more.
  bool broken() const { return rows_here() < arrived; }
};

// The groups of a table. Not thread-safe.
class Groups {
 public:
  // Null if there is none.
  const Group* Find(GroupId id) const {
    const auto it = by_id_.find(id);
    return it == by_id_.end() ? nullptr : it->second.get();
  }
  const Group* FindByLeader(RowId leader) const {
    const auto it = by_leader_.find(leader);
    return it == by_leader_.end() ? nullptr : it->second;
  }
  int64_t size() const { return static_cast<int64_t>(by_id_.size()); }
  // Those that do not have all their rows, by leader.
  const IdSet& incomplete() const { return incomplete_; }
  // The rows that these lack together.
  int64_t rows_to_come() const { return to_come_; }
  // Ever.
  uint64_t begun() const { return begun_; }

  // The group of this id; one that is new gets this size, leader and number of counts.
  Group& Open(GroupId id, int64_t size, RowId leader, size_t counts) {
    std::unique_ptr<Group>& group = by_id_[id];
    if (group == nullptr) {
      group = std::make_unique<Group>();
      group->id = id;
      group->size = size;
      group->leader = leader;
      group->ordinal = begun_++;
      to_come_ += size;
      group->counts.resize(counts);
      by_leader_[leader] = group.get();
      incomplete_.Insert(leader);
    }
    return *group;
  }
  void AddRow(Group& group, RowId row) {
    ++group.arrived;
    --to_come_;
    group.rows.Add(row);
    if (group.complete()) incomplete_.Erase(group.leader);
  }
  // With `again`, another may take its place. True if the group is gone then: no row is there, and none is to come.
  bool RemoveRow(Group& group, RowId row, bool again) {
    group.arrived -= again;
    to_come_ += again;
    group.rows.Remove(row);
    if (!group.complete()) incomplete_.Insert(group.leader);
    if (!group.rows.empty() || (group.arrived > 0 && !group.complete())) return false;
    Forget(group);
    return true;
  }
  // It has no rows.
  void Forget(const Group& group) {
    to_come_ -= group.size - group.arrived;
    incomplete_.Erase(group.leader);
    by_leader_.erase(group.leader);
    by_id_.erase(group.id);
  }

  std::vector<GroupId> Ids() const {
    std::vector<GroupId> ids;
    for (const auto& [id, group] : by_id_) ids.push_back(id);
    return ids;
  }

  template <class Visit>
  void ForEach(Visit visit) {
    for (auto& [id, group] : by_id_) visit(*group);
  }

 private:
  absl::flat_hash_map<GroupId, std::unique_ptr<Group>> by_id_;
  absl::flat_hash_map<RowId, Group*> by_leader_;
  IdSet incomplete_;
  uint64_t begun_ = 0;
  int64_t to_come_ = 0;
};

}  // namespace tdock
