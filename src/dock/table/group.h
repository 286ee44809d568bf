// Prompts and their rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "dock/table/id_set.h"
#include "tdock/rows.h"

namespace tdock::dock {

// The existing rows of a group, ascending. Rows usually leave in order, which costs no more than in any other order.
class GroupRows {
 public:
  const RowId* begin() const { return rows_.data() + gone_; }
  const RowId* end() const { return rows_.data() + rows_.size(); }
  size_t size() const { return rows_.size() - gone_; }
  bool empty() const { return size() == 0; }

  // Appends a row with the highest id.
  void Add(RowId row) { rows_.push_back(row); }
  // Removes an existing row.
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
  // The rows that were put, minus those that may be put again.
  int64_t arrived = 0;
  // The id of its first row, which determines its place in the order of groups. That row itself may be gone.
  RowId leader = 0;
  // The highest age that a row of it had.
  int32_t age = 0;
  // The number of groups that were begun before it.
  uint64_t ordinal = 0;
  // The existing rows, ascending.
  GroupRows rows;
  // For each consumer of groups, the number of the rows in these states.
  struct Counts {
    int32_t ready = 0;
    int32_t quarantined = 0;
    int32_t done = 0;
  };
  absl::InlinedVector<Counts, 2> counts;

  int64_t rows_here() const { return static_cast<int64_t>(rows.size()); }
  bool complete() const { return arrived == size; }
  // Rows are gone for good: consumers can no longer take it as a whole.
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
  // The incomplete groups, by leader.
  const IdSet& incomplete() const { return incomplete_; }
  // The total number of rows that they lack.
  int64_t rows_to_come() const { return to_come_; }
  // Since the table was created.
  uint64_t begun() const { return begun_; }

  // The group of this id; a new one gets this size, leader and number of counts.
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
  // A group that had rows, of which `gone` are gone for good and the others are yet to be added.
  void Restore(GroupId id, int64_t size, int64_t gone, RowId leader, int32_t age, uint64_t ordinal) {
    Group& group = Open(id, size, leader, 0);
    group.arrived = gone;
    to_come_ -= gone;
    group.age = age;
    group.ordinal = ordinal;
  }
  void SetBegun(uint64_t begun) { begun_ = begun; }
  void AddRow(Group& group, RowId row) {
    ++group.arrived;
    --to_come_;
    group.rows.Add(row);
    if (group.complete()) incomplete_.Erase(group.leader);
  }
  // With `again`, another row may take its place. True if the group is then gone: no row exists, and none can come.
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
  template <class Visit>
  void ForEach(Visit visit) const {
    for (const auto& [id, group] : by_id_) visit(std::as_const(*group));
  }

 private:
  absl::flat_hash_map<GroupId, std::unique_ptr<Group>> by_id_;
  absl::flat_hash_map<RowId, Group*> by_leader_;
  IdSet incomplete_;
  uint64_t begun_ = 0;
  int64_t to_come_ = 0;
};

}  // namespace tdock::dock
